// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string_view>

#include "moesaic/report/measurement.h"
#include "moesaic/report/sweep_report.h"
#include "plots/panels.h"

namespace moesaic {
namespace {

constexpr std::string_view kSweepStyle = R"(
array marker[6] = [7, 5, 9, 13, 11, 15]
marker_of(c) = marker[1 + (c - 1) % 6]
set xlabel sprintf("parameters pruned, %%\nexperts kept in each layer, of %d", experts) \
  textcolor rgb ink offset 0, -0.7
set offsets graph 0.04, graph 0.04, 0, 0
set key at graph -0.01, 1.04 left bottom vertical maxrows 3 Left reverse samplen 2.4 \
  spacing 1.1 textcolor rgb ink

pruned(c) = column(2 + 7 * (c - 1))
# Bars at one place stand side by side.
beside(c, half) = pruned(c) + span * (c + half - words(criteria) / 2.0) / 60
entry(c, which) = column(2 + 7 * (c - 1) + which)
heading(text) = sprintf('{/:Bold %s}', text)

)";

constexpr std::string_view kSweepPanels =
    R"(  set multiplot layout 1,2 margins screen 0.1, screen 0.97, screen 0.25, screen 0.75 \
    spacing screen 0.11

  set label 1 heading('Accuracy after pruning') at graph 0, 1.36 left textcolor rgb ink
  set ylabel 'test accuracy, %' textcolor rgb ink
  set yrange [*:* < 100]
  plot for [c=1:words(criteria)] data using (beside(c, 0)):(entry(c, 3)):(entry(c, 4)) \
         with yerrorlines lc rgb colour_of(c) lw 2 pt marker_of(c) ps 0.8 title word(criteria, c), \
       for [c=1:words(criteria)] data using (beside(c, -0.5)):(entry(c, 1)):(entry(c, 2)) \
         with yerrorlines lc rgb colour_of(c) lw 2 dt (6, 4) pt marker_of(c) - 1 ps 0.8 notitle, \
       NaN with lines lc rgb ink lw 2 title 'with recovery', \
       NaN with lines lc rgb ink lw 2 dt (6, 4) title 'without recovery'

  set label 1 heading('Cost, experts ranked by ' . word(criteria, 1))
  set ylabel sprintf('fraction of the network with %d, %%', whole) textcolor rgb ink
  set yrange [0:*]
  plot data using (pruned(1)):(entry(1, 5)) with linespoints lc rgb ink lw 2 pt 7 ps 0.8 \
         title 'FLOPs an image', \
       data using (pruned(1)):(entry(1, 6)) with linespoints lc rgb colour_of(5) lw 2 pt 5 ps 0.8 \
         title 'forward time'
  unset multiplot
}
)";

std::string data_of(const SweepOutcome& outcome) {
  std::string text = "# experts";
  for (const std::string& criterion : outcome.criteria) {
    for (const char* what : {"parameters pruned, %", "accuracy, %", "std", "recovered, %", "std",
                             "FLOPs, %", "forward time, %"}) {
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
      const WorkFraction& fraction = fractions[c][i];
      const Moments pruned = moments(point.accuracy), recovered = moments(point.accuracy_recovered);
      text += fmt::format("\t{:.3f}\t{:.4f}\t{:.4f}\t{:.4f}\t{:.4f}\t{:.3f}\t{:.3f}",
                          100.0 - fraction.parameters, pruned.mean, pruned.std, recovered.mean,
                          recovered.std, fraction.flops, fraction.time);
    }
    text += "\n";
  }
  return text;
}

/// Returns a tic for each network of the first criterion, where markers stand.
std::string tics_of(const SweepOutcome& outcome) {
  std::vector<std::string> tics;
  for (const WorkFraction& fraction : work_fractions(outcome, outcome.criteria.front())) {
    const double pruned = 100.0 - fraction.parameters;
    tics.push_back(fmt::format("\"{:.0f}\\n{}\" {:.3f}", pruned, fraction.keep, pruned));
  }
  return fmt::format("{}", fmt::join(tics, ", "));
}

double largest_pruned(const SweepOutcome& outcome) {
  double pruned = 0.0;
  for (const WorkFraction& fraction : work_fractions(outcome, outcome.criteria.front())) {
    pruned = std::max(pruned, 100.0 - fraction.parameters);
  }
  return pruned;
}

}  // namespace

Figure sweep_figure(const SweepOutcome& outcome) {
  const bool bars = outcome.runs() > 1;
  std::string head = script_head("figure");
  head += fmt::format("criteria = '{}'\n", fmt::join(outcome.criteria, " "));
  head += fmt::format("experts = {}\n", outcome.experts);
  head += fmt::format("whole = {}  # the network that the fractions are of\n",
                      *std::max_element(outcome.keep.begin(), outcome.keep.end()));
  head += fmt::format("span = {:.3f}\n", bars ? largest_pruned(outcome) : 0.0);
  head += fmt::format("set errorbars {}\n", bars ? "0.5" : "0");
  head += fmt::format("set xtics ({})\n", tics_of(outcome));
  head += std::string(kSweepStyle) + for_both_files(960, 450);
  return {head + std::string(kSweepPanels), data_of(outcome)};
}

}  // namespace moesaic
