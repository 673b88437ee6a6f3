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
set xlabel sprintf("parameters pruned, %%\nexperts kept in each layer, of %d", experts) . choices \
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
    R"(  set multiplot layout 1,2 margins screen 0.1, screen 0.97, screen bottom, screen top \
    spacing screen 0.11

  set label 1 heading('Accuracy after pruning') at graph 0, 1.36 left textcolor rgb ink
  set ylabel 'test accuracy, %' textcolor rgb ink
  set yrange [*:* < 100]
  plot for [c=1:words(criteria)] data index 0 using (beside(c, 0)):(entry(c, 3)):(entry(c, 4)) \
         with yerrorlines lc rgb colour_of(c) lw 2 pt marker_of(c) ps 0.8 title word(criteria, c), \
       for [c=1:words(criteria)] data index 0 using (beside(c, -0.5)):(entry(c, 1)):(entry(c, 2)) \
         with yerrorlines lc rgb colour_of(c) lw 2 dt (6, 4) pt marker_of(c) - 1 ps 0.8 notitle, \
       for [c=1:chosen] data index 1 using (beside(c, 0)):(entry(c, 3)):(entry(c, 4)) \
         with yerrorbars lc rgb colour_of(c) lw 2 pt marker_of(c) ps 1.3 notitle, \
       for [c=1:chosen] data index 1 using (beside(c, -0.5)):(entry(c, 1)):(entry(c, 2)) \
         with yerrorbars lc rgb colour_of(c) lw 2 pt marker_of(c) - 1 ps 1.3 notitle, \
       NaN with lines lc rgb ink lw 2 title 'with recovery', \
       NaN with lines lc rgb ink lw 2 dt (6, 4) title 'without recovery'

  set label 1 heading('Cost, experts ranked by ' . word(criteria, 1))
  set ylabel 'fraction of the network with ' . whole . ', %' textcolor rgb ink
  set yrange [0:*]
  plot data index 0 using (pruned(1)):(entry(1, 5)) with linespoints lc rgb ink lw 2 pt 7 ps 0.8 \
         title 'FLOPs an image', \
       data index 0 using (pruned(1)):(entry(1, 6)) with linespoints lc rgb colour_of(5) lw 2 \
         pt 5 ps 0.8 title 'forward time', \
       for [c=1:chosen > 0] data index 1 using (pruned(1)):(entry(1, 5)) \
         with points lc rgb ink lw 2 pt 7 ps 1.3 notitle, \
       for [c=1:chosen > 0] data index 1 using (pruned(1)):(entry(1, 6)) \
         with points lc rgb colour_of(5) lw 2 pt 5 ps 1.3 notitle
  unset multiplot
}
)";

/// Returns the choices by layer: the sizes that are no number.
std::vector<SweepSize> choices_of(const SweepOutcome& outcome) {
  std::vector<SweepSize> choices = outcome.sizes;
  std::erase_if(choices, [](const SweepSize& size) { return size.count > 0; });
  return choices;
}

/// Returns "a", "b" and so on, by which the axis calls the choices by layer; "a1" follows "z".
std::string letter_of(size_t choice) {
  const std::string letter(1, static_cast<char>('a' + choice % 26));
  return choice < 26 ? letter : letter + std::to_string(choice / 26);
}

/// Returns the lines of one size: what every criterion came to.
std::string data_line(const SweepOutcome& outcome, size_t i,
                      const std::vector<std::vector<WorkFraction>>& fractions) {
  const SweepSize& size = outcome.sizes[i];
  std::string text = size.count > 0 ? std::to_string(size.count) : size.name;
  for (size_t c = 0; c < outcome.criteria.size(); ++c) {
    const SweepPoint& point = outcome.at(size.name, outcome.criteria[c]);
    const WorkFraction& fraction = fractions[c][i];
    const Moments pruned = moments(point.accuracy), recovered = moments(point.accuracy_recovered);
    text += fmt::format("\t{:.3f}\t{:.4f}\t{:.4f}\t{:.4f}\t{:.4f}\t{:.3f}\t{:.3f}",
                        100.0 - fraction.parameters, pruned.mean, pruned.std, recovered.mean,
                        recovered.std, fraction.flops, fraction.time);
  }
  return text + "\n";
}

/// Returns a block of the numbers of experts and, where there are any, one of the choices by layer.
std::string data_of(const SweepOutcome& outcome) {
  std::string counts = "# experts";
  for (const std::string& criterion : outcome.criteria) {
    for (const char* what : {"parameters pruned, %", "accuracy, %", "std", "recovered, %", "std",
                             "FLOPs, %", "forward time, %"}) {
      counts += fmt::format("\t{}: {}", criterion, what);
    }
  }
  counts += "\n";
  std::vector<std::vector<WorkFraction>> fractions;
  for (const std::string& c : outcome.criteria) fractions.push_back(work_fractions(outcome, c));
  std::string choices;
  for (size_t i = 0; i < outcome.sizes.size(); ++i) {
    (outcome.sizes[i].count > 0 ? counts : choices) += data_line(outcome, i, fractions);
  }
  return counts + (choices.empty() ? "" : "\n\n" + choices);
}

/// Returns tics where the first criterion's markers stand, one for all that have the same text.
std::string tics_of(const SweepOutcome& outcome) {
  struct Tic {
    std::string percent, sizes;
    double place = 0.0;
  };
  std::vector<Tic> tics;
  const auto fractions = work_fractions(outcome, outcome.criteria.front());
  size_t choices = 0;
  for (size_t i = 0; i < outcome.sizes.size(); ++i) {
    const double pruned = 100.0 - fractions[i].parameters;
    const SweepSize& size = outcome.sizes[i];
    const std::string name = size.count > 0 ? std::to_string(size.count) : letter_of(choices++);
    const std::string percent = fmt::format("{:.0f}", pruned);
    const auto same = std::find_if(tics.begin(), tics.end(),
                                   [&](const Tic& tic) { return tic.percent == percent; });
    if (same == tics.end()) {
      tics.push_back({percent, name, pruned});
    } else {
      same->sizes += ", " + name;
    }
  }
  std::vector<std::string> texts;
  for (const Tic& tic : tics) {
    texts.push_back(fmt::format("\"{}\\n{}\" {:.3f}", tic.percent, tic.sizes, tic.place));
  }
  return fmt::format("{}", fmt::join(texts, ", "));
}

/// Returns the fraction of parameters, in %, that the first criterion's smallest network lacks.
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
  const std::vector<SweepSize> choices = choices_of(outcome);
  std::string lines;
  for (size_t i = 0; i < choices.size(); ++i) {
    lines += " . \"\\n\" . " + plot_name(letter_of(i) + ": " + choices[i].text);
  }
  // Each choice has a line under the axis, for which the figure grows.
  constexpr int kHeight = 450, kLine = 18;
  constexpr double kAround = 0.25 * kHeight;
  const int under = kLine * static_cast<int>(choices.size());
  const double height = kHeight + under;
  std::string head = script_head("figure");
  head += fmt::format("criteria = '{}'\n", fmt::join(outcome.criteria, " "));
  head += fmt::format("experts = {}\n", outcome.experts);
  head += fmt::format("choices = ''{}  # by layer, called a, b and so on\n", lines);
  head += fmt::format("chosen = {}  # criteria that have them\n",
                      choices.empty() ? 0 : outcome.criteria.size());
  head += fmt::format("whole = {}  # the network that the fractions are of\n",
                      plot_name(largest_text(outcome, outcome.criteria.front())));
  head += fmt::format("span = {:.3f}\n", bars ? largest_pruned(outcome) : 0.0);
  head += fmt::format("bottom = {:.4f}\ntop = {:.4f}\n", (kAround + under) / height,
                      1.0 - kAround / height);
  head += fmt::format("set errorbars {}\n", bars ? "0.5" : "0");
  head += fmt::format("set xtics ({})\n", tics_of(outcome));
  head += std::string(kSweepStyle) + for_both_files(960, kHeight + under);
  return {head + std::string(kSweepPanels), data_of(outcome)};
}

}  // namespace moesaic
