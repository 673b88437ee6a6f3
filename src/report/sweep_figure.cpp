// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string_view>

#include "moesaic/report/sweep_report.h"
#include "plots/panels.h"

namespace moesaic {
namespace {

constexpr std::string_view kSweepStyle = R"(
array marker[6] = [7, 5, 9, 13, 11, 15]
set xlabel sprintf('experts kept in each layer, of %d', experts) textcolor rgb ink
set offsets graph 0.04, graph 0.04, 0, 0
set key at graph -0.01, 1.04 left bottom vertical maxrows 3 Left reverse samplen 2.4 \
  spacing 1.1 textcolor rgb ink

entry(c, which) = column(1 + 4 * (c - 1) + which)
heading(text) = sprintf('{/:Bold %s}', text)

)";

constexpr std::string_view kSweepPanels =
    R"(  set multiplot layout 1,2 margins screen 0.1, screen 0.97, screen 0.16, screen 0.75 \
    spacing screen 0.11

  set label 1 heading('Accuracy after pruning') at graph 0, 1.36 left textcolor rgb ink
  set ylabel 'test accuracy, %' textcolor rgb ink
  set yrange [*:* < 100]
  plot for [c=1:words(criteria)] data using 1:(entry(c, 2)) with linespoints \
         lc rgb colour_of(c) lw 2 pt marker[c] ps 0.8 title word(criteria, c), \
       for [c=1:words(criteria)] data using 1:(entry(c, 1)) with linespoints \
         lc rgb colour_of(c) lw 2 dt (6, 4) pt marker[c] - 1 ps 0.8 notitle, \
       NaN with lines lc rgb ink lw 2 title 'with recovery', \
       NaN with lines lc rgb ink lw 2 dt (6, 4) title 'without recovery'

  set label 1 heading('Cost, experts ranked by ' . word(criteria, 1))
  set ylabel sprintf('fraction of the network with %d, %%', whole) textcolor rgb ink
  set yrange [0:*]
  plot data using 1:(entry(1, 3)) with linespoints lc rgb ink lw 2 pt 7 ps 0.8 \
         title 'FLOPs an image', \
       data using 1:(entry(1, 4)) with linespoints lc rgb colour_of(5) lw 2 pt 5 ps 0.8 \
         title 'forward time'
  unset multiplot
}
)";

std::string data_of(const SweepOutcome& outcome) {
  std::string text = "# experts";
  for (const std::string& criterion : outcome.criteria) {
    for (const char* what : {"accuracy, %", "recovered, %", "FLOPs, %", "forward time, %"}) {
      text += fmt::format("\t{}: {}", criterion, what);
    }
  }
  text += "\n";
  std::vector<std::vector<WorkFraction>> fractions;
  for (const std::string& c : outcome.criteria) fractions.push_back(work_fractions(outcome, c));
  for (size_t i = 0; i < outcome.keep.size(); ++i) {
    text += std::to_string(outcome.keep[i]);
    for (size_t c = 0; c < outcome.criteria.size(); ++c) {
      const SweepPoint& point = outcome.at(outcome.keep[i], outcome.criteria[c]);
      text += fmt::format("\t{:.4f}\t{:.4f}\t{:.3f}\t{:.3f}", point.accuracy,
                          point.accuracy_recovered, fractions[c][i].flops, fractions[c][i].time);
    }
    text += "\n";
  }
  return text;
}

}  // namespace

Figure sweep_figure(const SweepOutcome& outcome) {
  std::string head = script_head("figure");
  head += fmt::format("criteria = '{}'\n", fmt::join(outcome.criteria, " "));
  head += fmt::format("experts = {}\n", outcome.experts);
  head += fmt::format("whole = {}  # the network that the fractions are of\n",
                      *std::max_element(outcome.keep.begin(), outcome.keep.end()));
  head += fmt::format("set xtics ({})\n", fmt::join(outcome.keep, ", "));
  head += std::string(kSweepStyle) + for_both_files(960, 450);
  return {head + std::string(kSweepPanels), data_of(outcome)};
}

}  // namespace moesaic
