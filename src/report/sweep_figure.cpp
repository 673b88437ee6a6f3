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
marker_of(c) = marker[1 + (c - 1) % 6]
set xlabel sprintf("parameters pruned, %%\nexperts kept in each layer, of %d", experts) . choices \
  textcolor rgb ink offset 0, -0.7
set offsets graph 0.04, graph 0.04, 0, 0
set key at graph -0.01, 1.04 left bottom vertical maxrows rows Left reverse samplen 2.4 \
  spacing 1.1 textcolor rgb ink

pruned(c) = column(2 + 7 * (c - 1))
# Bars at one place stand side by side.
beside(c, half) = pruned(c) + span * (c + half - words(criteria) / 2.0) / 60
entry(c, which) = column(2 + 7 * (c - 1) + which)
heading(text) = sprintf('{/:Bold %s}', text)
# The names of more than four criteria are too long for two columns.
named(text) = words(criteria) > 4 ? sprintf('{/*0.85 %s}', text) : text

)";

constexpr std::string_view kSweepPanels =
    R"(  set multiplot layout 1,2 margins screen 0.1, screen 0.97, screen bottom, screen top \
    spacing screen 0.13

  set label 1 heading('Accuracy after pruning') at graph 0, 1.08 + 0.093 * rows left textcolor rgb ink
  set ylabel 'test accuracy, %' textcolor rgb ink
  set yrange [*:* < 100]
  plot for [c=1:words(criteria)] data index 0 using (beside(c, 0)):(entry(c, 3)):(entry(c, 4)) \
         with yerrorlines lc rgb colour_of(c) lw 2 pt marker_of(c) ps 0.8 \
         title named(word(criteria, c)), \
       for [c=1:words(criteria)] data index 0 using (beside(c, -0.5)):(entry(c, 1)):(entry(c, 2)) \
         with yerrorlines lc rgb colour_of(c) lw 2 dt (6, 4) pt marker_of(c) - 1 ps 0.8 notitle, \
       for [c=1:chosen] data index 1 using (beside(c, 0)):(entry(c, 3)):(entry(c, 4)) \
         with yerrorbars lc rgb colour_of(c) lw 2 pt marker_of(c) ps 1.3 notitle, \
       for [c=1:chosen] data index 1 using (beside(c, -0.5)):(entry(c, 1)):(entry(c, 2)) \
         with yerrorbars lc rgb colour_of(c) lw 2 pt marker_of(c) - 1 ps 1.3 notitle, \
       NaN with lines lc rgb ink lw 2 title named('with recovery'), \
       NaN with lines lc rgb ink lw 2 dt (6, 4) title named('without recovery')

  set label 1 heading('Cost, experts ranked by ' . word(criteria, 1))
  set ylabel "fraction of the network\nwith " . whole . ', %' textcolor rgb ink
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
std::vector<SweepSize> choices_of(const SweepPlan& plan) {
  std::vector<SweepSize> choices = plan.sizes;
  std::erase_if(choices, [](const SweepSize& size) { return size.count > 0; });
  return choices;
}

/// Returns "a", "b" and so on, by which the axis calls the choices by layer; "a1" follows "z".
std::string letter_of(size_t choice) {
  const std::string letter(1, static_cast<char>('a' + choice % 26));
  return choice < 26 ? letter : letter + std::to_string(choice / 26);
}

/// Returns the line of one size: what every criterion came to.
std::string data_line(const SweepPlan& plan, const SweepSize& size, const Results& results) {
  std::string text = size.count > 0 ? std::to_string(size.count) : size.name;
  for (const std::string& criterion : plan.criteria) {
    const std::string row = sweep_row(size.name, criterion);
    const auto value = [&](const char* metric) { return sweep_value(results, row, metric); };
    const auto spread = [&](const char* metric) {
      return results.find(row, metric)->std.value_or(0.0);
    };
    text += fmt::format("\t{:.3f}\t{:.4f}\t{:.4f}\t{:.4f}\t{:.4f}\t{:.3f}\t{:.3f}",
                        value("parameters_pruned"), value("accuracy"), spread("accuracy"),
                        value("accuracy_recovered"), spread("accuracy_recovered"),
                        100.0 - value("flops_saved"), 100.0 - value("time_saved"));
  }
  return text + "\n";
}

/// Returns a block of the numbers of experts and, where there are any, one of the choices by layer.
std::string data_of(const SweepPlan& plan, const Results& results) {
  std::string counts = "# experts";
  for (const std::string& criterion : plan.criteria) {
    for (const char* what : {"parameters pruned, %", "accuracy, %", "std", "recovered, %", "std",
                             "FLOPs, %", "forward time, %"}) {
      counts += fmt::format("\t{}: {}", criterion, what);
    }
  }
  counts += "\n";
  std::string choices;
  for (const SweepSize& size : plan.sizes) {
    (size.count > 0 ? counts : choices) += data_line(plan, size, results);
  }
  return counts + (choices.empty() ? "" : "\n\n" + choices);
}

/// Returns the fraction of parameters, in %, that the first criterion's network of a size lacks.
double pruned_of(const SweepPlan& plan, const SweepSize& size, const Results& results) {
  return sweep_value(results, sweep_row(size.name, plan.criteria.front()), "parameters_pruned");
}

/// Returns tics where the first criterion's markers stand, one for all that have the same text.
std::string tics_of(const SweepPlan& plan, const Results& results) {
  struct Tic {
    std::string percent, sizes;
    double place = 0.0;
  };
  std::vector<Tic> tics;
  size_t choices = 0;
  for (const SweepSize& size : plan.sizes) {
    const double pruned = pruned_of(plan, size, results);
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

}  // namespace

Figure sweep_figure(const SweepPlan& plan, const Results& results) {
  const bool bars = results.rows.front().runs > 1;
  double most_pruned = 0.0;
  for (const SweepSize& size : plan.sizes) {
    most_pruned = std::max(most_pruned, pruned_of(plan, size, results));
  }
  const std::vector<SweepSize> choices = choices_of(plan);
  std::string lines;
  for (size_t i = 0; i < choices.size(); ++i) {
    lines += " . \"\\n\" . " + plot_name(letter_of(i) + ": " + choices[i].text);
  }
  // The figure grows for the lines of choices under the axis and for those of the key above it.
  constexpr int kHeight = 450, kLine = 18, kRows = 3;
  constexpr double kAround = 0.25 * kHeight;
  const int rows = std::max(kRows, (static_cast<int>(plan.criteria.size()) + 3) / 2);
  const int under = kLine * static_cast<int>(choices.size()), above = kLine * (rows - kRows);
  const int height = kHeight + under + above;
  std::string head = script_head("figure");
  head += fmt::format("criteria = '{}'\n", fmt::join(plan.criteria, " "));
  head += fmt::format("experts = {}\n", plan.experts);
  head += fmt::format("choices = ''{}  # by layer, called a, b and so on\n", lines);
  head += fmt::format("chosen = {}  # criteria that have them\n",
                      choices.empty() ? 0 : plan.criteria.size());
  head += fmt::format("whole = {}  # the network that the fractions are of\n",
                      plot_name(largest_text(plan, results, plan.criteria.front())));
  head += fmt::format("span = {:.3f}\n", bars ? most_pruned : 0.0);
  head += fmt::format("rows = {}  # of the key\n", rows);
  head += fmt::format("bottom = {:.4f}\ntop = {:.4f}\n", (kAround + under) / height,
                      1.0 - (kAround + above) / height);
  head += fmt::format("set errorbars {}\n", bars ? "0.5" : "0");
  head += fmt::format("set xtics ({})\n", tics_of(plan, results));
  head += std::string(kSweepStyle) + for_both_files(960, height);
  return {head + std::string(kSweepPanels), data_of(plan, results)};
}

}  // namespace moesaic
