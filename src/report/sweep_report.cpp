// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "moesaic/base/error.h"
#include "moesaic/base/text.h"
#include "moesaic/report/comparison.h"
#include "moesaic/report/runs.h"
#include "panels.h"

namespace moesaic {
namespace {

constexpr size_t kTerminalColumns = 100;

int64_t runs_of(const Results& results) {
  int64_t most = 0;
  for (const ResultRow& row : results.rows) most = std::max(most, row.num_runs);
  return most;
}

constexpr const char* kSweepStyle = R"(  array marker[6] = [7, 5, 9, 13, 11, 15]
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
  low(c, which) = within(entry(c, which) - entry(c, which + 1))
  high(c, which) = within(entry(c, which) + entry(c, which + 1))
  heading(text) = sprintf('{/:Bold %s}', text)
  # The names of more than four criteria are too long for two columns.
  named(text) = words(criteria) > 4 ? sprintf('{/*0.85 %s}', text) : text
  set label 1 heading('Accuracy after pruning') at graph 0, 1.08 + 0.093 * rows left \
    textcolor rgb ink
  set ylabel 'test accuracy, %' textcolor rgb ink
  set yrange [*:* < 100]
)";

constexpr const char* kAccuracyPlots =
    R"(for [c=1:words(criteria)] data index 0 using (beside(c, 0)):(entry(c, 3)):(low(c, 3)):(high(c, 3)) \
         with yerrorlines lc rgb colour_of(c) lw 2 pt marker_of(c) ps 0.8 \
         title named(word(criteria, c)), \
       for [c=1:words(criteria)] data index 0 using (beside(c, -0.5)):(entry(c, 1)):(low(c, 1)):(high(c, 1)) \
         with yerrorlines lc rgb colour_of(c) lw 2 dt (6, 4) pt marker_of(c) - 1 ps 0.8 notitle, \
       for [c=1:chosen] data index 1 using (beside(c, 0)):(entry(c, 3)):(low(c, 3)):(high(c, 3)) \
         with yerrorbars lc rgb colour_of(c) lw 2 pt marker_of(c) ps 1.3 notitle, \
       for [c=1:chosen] data index 1 using (beside(c, -0.5)):(entry(c, 1)):(low(c, 1)):(high(c, 1)) \
         with yerrorbars lc rgb colour_of(c) lw 2 pt marker_of(c) - 1 ps 1.3 notitle, \
       NaN with lines lc rgb ink lw 2 title named('with recovery'), \
       NaN with lines lc rgb ink lw 2 dt (6, 4) title named('without recovery'))";

constexpr const char* kCostStyle =
    R"(  set label 1 heading('Cost, experts ranked by ' . word(criteria, 1))
  set ylabel "fraction of the network\nwith " . whole . ', %' textcolor rgb ink
  set yrange [0:*]
)";

constexpr const char* kCostPlots =
    R"(data index 0 using (pruned(1)):(entry(1, 5)) with linespoints lc rgb ink lw 2 pt 7 ps 0.8 \
         title 'FLOPs an image', \
       data index 0 using (pruned(1)):(entry(1, 6)) with linespoints lc rgb colour_of(5) lw 2 \
         pt 5 ps 0.8 title 'forward time', \
       for [c=1:chosen > 0] data index 1 using (pruned(1)):(entry(1, 5)) \
         with points lc rgb ink lw 2 pt 7 ps 1.3 notitle, \
       for [c=1:chosen > 0] data index 1 using (pruned(1)):(entry(1, 6)) \
         with points lc rgb colour_of(5) lw 2 pt 5 ps 1.3 notitle)";

/// Returns "a", "b" and so on, by which the axis calls the choices by layer; "a1" follows "z".
std::string letter_of(int choice) {
  const std::string letter(1, static_cast<char>('a' + choice % 26));
  return choice < 26 ? letter : letter + std::to_string(choice / 26);
}

std::string data_heading(const SweepPlan& plan) {
  std::string text = "# experts";
  for (const std::string& criterion : plan.plotted) {
    for (const char* what : {"parameters pruned, %", "accuracy, %", "std", "recovered, %", "std",
                             "FLOPs, %", "forward time, %"}) {
      text += fmt::format("\t{}: {}", criterion, what);
    }
  }
  return text + "\n";
}

/// A tic where the first criterion's marker stands, for all markers that have the same text.
struct SweepTic {
  std::string percent, sizes;
  double place = 0.0;
};

/// What a sweep came to, or an earlier one with the same plan.
struct SweepFindings {
  const SweepPlan& plan;
  const Results& results;
  const std::string& criterion = plan.criteria.front();  ///< Costs are those of its networks.

  /// Returns the value of a network by the criterion. Throws Error where the results have none.
  double cost(const SweepSize& size, const char* metric) const {
    return value(sweep_row_name(size.name, criterion), metric);
  }
  double value(const std::string& row, const char* metric) const {
    const ResultRow* found = results.find(row, metric);
    if (found == nullptr) fail("the results have no {} of '{}'", metric, row);
    return found->measured;
  }
  /// Returns the mean over the runs and, of several, their standard deviation; "-" without a row.
  std::string percent(const std::string& row, const char* metric) const {
    const ResultRow* found = results.find(row, metric);
    if (found == nullptr) return "-";
    return found->std ? fmt::format("{:.2f} ({:.2f})", found->measured, *found->std)
                      : fmt::format("{:.2f}", found->measured);
  }
  std::string runs_sentence() const {
    if (runs_of(results) == 1) return "";
    return fmt::format(", mean (standard deviation) of {} runs", runs_of(results));
  }
  /// Returns the size of the network with the most parameters, of which costs are fractions.
  std::string largest() const {
    const SweepSize& size = *std::ranges::max_element(
        plan.sizes, {}, [&](const SweepSize& one) { return cost(one, "parameters"); });
    return size.count > 0 ? fmt::format("{} experts", size.count) : size.text;
  }

  TextTable phases() const {
    TextTable table({"phase", "data", "test images", "test accuracy, %"}, 2);
    for (const SweepPhase& phase : plan.phases) {
      table.add({phase.name, phase.data, with_commas(phase.num_images),
                 percent(phase.name, "test_accuracy")});
    }
    return table;
  }

  /// Returns a table of networks' accuracies, "pruned -> recovered", and that of the .pt2 of one.
  TextTable accuracies(const std::vector<std::string>& criteria) const {
    std::vector<std::string> header = {"experts"};
    header.insert(header.end(), criteria.begin(), criteria.end());
    const bool has_program = plan.exported && results.find(kSweepProgramRow, "accuracy") != nullptr;
    if (has_program) header.emplace_back(".pt2, run 1");
    TextTable table(header);
    for (const SweepSize& size : plan.sizes) {
      std::vector<std::string> cells = {size.text};
      for (const std::string& by : criteria) {
        const std::string row = sweep_row_name(size.name, by);
        cells.push_back(percent(row, "accuracy") + " -> " + percent(row, "accuracy_recovered"));
      }
      if (has_program) {
        const bool is_exported = size.name == sweep_size_name(plan.exported->num_experts);
        cells.push_back(is_exported ? percent(kSweepProgramRow, "accuracy") : "-");
      }
      table.add(std::move(cells));
    }
    return table;
  }

  /// Returns one table, or several with fewer criteria where one would be too wide.
  std::string accuracy_texts() const {
    std::string text, table;
    std::vector<std::string> group;
    for (const std::string& by : plan.criteria) {
      group.push_back(by);
      std::string wider = accuracies(group).text();
      // Its numbers are aligned right, so that all lines are as long.
      if (group.size() > 1 && wider.find('\n') > kTerminalColumns) {
        text += table + "\n";
        group = {by};
        wider = accuracies(group).text();
      }
      table = std::move(wider);
    }
    return text + table;
  }

  TextTable costs() const {
    TextTable table({"experts", "parameters", "file", "MFLOPs an image", "images/s", "FLOPs, %",
                     "by capacity, %", "forward time, %"});
    for (const SweepSize& size : plan.sizes) {
      const auto left = [&](const char* saved) {
        return fmt::format("{:.1f}", 100.0 - cost(size, saved));
      };
      table.add({size.text, with_commas(std::llround(cost(size, "parameters"))),
                 bytes_text(cost(size, "bytes")), fmt::format("{:.2f}", cost(size, "flops") / 1e6),
                 with_commas(std::llround(cost(size, "images_per_second"))), left("flops_saved"),
                 left("capacity_flops_saved"), left("time_saved")});
    }
    return table;
  }

  /// Compares the first criterion of each size with the others. What keeps all experts is the same
  /// for all.
  std::vector<RowComparison> compared_criteria() const {
    std::vector<RowComparison> comparisons;
    for (const SweepSize& size : plan.sizes) {
      for (const char* metric : {"accuracy", "accuracy_recovered"}) {
        const ResultRow* row = results.find(sweep_row_name(size.name, criterion), metric);
        for (size_t i = 1; size.count < plan.num_experts && i < plan.criteria.size(); ++i) {
          const ResultRow* other =
              results.find(sweep_row_name(size.name, plan.criteria[i]), metric);
          if (row == nullptr || other == nullptr) continue;
          const auto comparison = compared(*row, *other);
          if (comparison && comparison->difference.n > 1) comparisons.push_back(*comparison);
        }
      }
    }
    return comparisons;
  }

  std::string exported() const {
    std::string text =
        fmt::format("{} of {} experts by {}, recovered; TorchScript, {:.2f} x our forward time",
                    plan.exported->num_experts, plan.num_experts, plan.exported->criterion,
                    value("export", "forward_time_ratio"));
    const ResultRow* program = results.find(kSweepProgramRow, "forward_time_ratio");
    if (program != nullptr) text += fmt::format("; {}, {:.2f} x", kSweepProgram, program->measured);
    return text;
  }

  /// Returns the line of one size: what every plotted criterion came to.
  std::string data_line(const SweepSize& size) const {
    std::string text = size.count > 0 ? std::to_string(size.count) : size.name;
    for (const std::string& by : plan.plotted) {
      const std::string row = sweep_row_name(size.name, by);
      const auto spread = [&](const char* metric) {
        return results.find(row, metric)->std.value_or(0.0);
      };
      text +=
          fmt::format("\t{:.3f}\t{:.4f}\t{:.4f}\t{:.4f}\t{:.4f}\t{:.3f}\t{:.3f}",
                      value(row, "parameters_pruned"), value(row, "accuracy"), spread("accuracy"),
                      value(row, "accuracy_recovered"), spread("accuracy_recovered"),
                      100.0 - value(row, "flops_saved"), 100.0 - value(row, "time_saved"));
    }
    return text + "\n";
  }

  /// Returns two panels over the fraction of pruned parameters: accuracy without and with recovery
  /// for each criterion, with the standard deviation over the runs as error bars; FLOPs and forward
  /// time of the first criterion. Numbers of experts are lines, choices by layer points beside
  /// them.
  Figure figure() const {
    // Numbers of experts are a block and choices by layer, which the axis calls by letters,
    // another.
    std::string counts = data_heading(plan), choices, lines, tics;
    std::vector<SweepTic> places;
    int letters = 0;
    double most_pruned = 0.0;
    for (const SweepSize& size : plan.sizes) {
      (size.count > 0 ? counts : choices) += data_line(size);
      std::string name = std::to_string(size.count);
      if (size.count == 0) {
        name = letter_of(letters++);
        lines += " . \"\\n\" . " + plot_name(name + ": " + size.text);
      }
      const double pruned = cost(size, "parameters_pruned");
      most_pruned = std::max(most_pruned, pruned);
      const std::string percent = fmt::format("{:.0f}", pruned);
      const auto same = std::ranges::find(places, percent, &SweepTic::percent);
      if (same == places.end()) {
        places.push_back({percent, name, pruned});
      } else {
        same->sizes += ", " + name;
      }
    }
    for (const auto& [percent, sizes, place] : places) {
      tics += fmt::format("{}\"{}\\n{}\" {:.3f}", tics.empty() ? "" : ", ", percent, sizes, place);
    }
    const double span = results.rows.front().num_runs > 1 ? most_pruned : 0.0;  // Of error bars.
    // The figure grows for the lines of choices under the axis and for those of the key above it.
    constexpr int kLine = 18, kRows = 3;
    const int rows = std::max(kRows, (static_cast<int>(plan.plotted.size()) + 3) / 2);
    const std::string head = fmt::format(
        "  criteria = '{}'\n  experts = {}\n  choices = ''{}\n  chosen = {}\n  whole = {}\n"
        "  span = {:.3f}\n  rows = {}\n  set xtics ({})\n",
        fmt::join(plan.plotted, " "), plan.num_experts, lines,
        letters == 0 ? 0 : plan.plotted.size(), plot_name(largest()), span, rows, tics);
    const Metric& accuracy = *find_metric(sweep_metrics(/*is_of_network=*/true), "accuracy");
    std::vector<std::string> blocks = {counts};
    if (letters > 0) blocks.push_back(choices);
    return panel_figure("figure",
                        {{head + range_commands(accuracy) + kSweepStyle, {kAccuracyPlots}, blocks},
                         {kCostStyle, {kCostPlots}}},
                        {.columns = 2,
                         .width = 355,
                         .height = 225,
                         .left = 96,
                         .right = 29,
                         .top = 112 + kLine * (rows - kRows),
                         .bottom = 113 + kLine * letters,
                         .gap_x = 125});
  }
};

/// Returns the table of what was kept, as `text` makes it; "" where it has no place: several runs
/// speak for themselves.
std::string kept_text(const SweepFindings& found, const SweepFindings& kept, const auto& text) {
  if (runs_of(found.results) > 1 || kept.results.rows.empty()) return "";
  return fmt::format("\nKept from {} runs, mean (standard deviation)\n\n{}", runs_of(kept.results),
                     text(kept));
}

std::string markdown_of(const Experiment& experiment, const SweepFindings& found,
                        const SweepFindings& kept) {
  const auto& [plan, results, criterion] = found;
  const bool has_choices = std::ranges::count(plan.sizes, 0, &SweepSize::count) > 0;
  const auto table = [](const SweepFindings& of) {
    return of.accuracies(of.plan.criteria).markdown();
  };
  std::string text = fmt::format("# {}\n\n{}\n\n{} It took {:.0f} seconds.\n\n", experiment.name,
                                 experiment.description, experiment.scale_text(), results.seconds);
  text += found.phases().markdown();
  text += fmt::format(
      "\n## Accuracy on {}\n\nTest accuracy in %, pruned -> recovered, by experts kept in each "
      "layer and by what ranked them{}.{}\n\n{}{}\n![Accuracy and cost over the fraction of pruned "
      "parameters](figure.svg)\n",
      plan.phases.back().data, found.runs_sentence(),
      has_choices ? " Behind the name of a choice by layer stand the experts of each layer." : "",
      table(found), kept_text(found, kept, table));
  text += comparison_markdown(found.compared_criteria());
  text += fmt::format(
      "\n## Cost, experts ranked by {}\n\nThe last three columns are fractions of the network with "
      "{}. FLOPs count the matrix multiplications of the rows that the test split's routing really "
      "computed, and by capacity those of full capacity buffers of the experts that are left. "
      "Speed is the median over forward passes in which all networks took turns.\n\n{}",
      criterion, found.largest(), found.costs().markdown());
  if (plan.exported) {
    text += fmt::format("\nExported: `{}` ({}).\n", kSweepModel, found.exported());
  }
  text += fmt::format("\n## Every value\n\n{}{}\n\n{}",
                      results.has_paper_values() ? "Values of the paper are beside ours."
                                                 : "No paper has this task.",
                      results_note(results), results_table(results).markdown());
  return text + fmt::format("\nMade by `{}`; `gnuplot figure.gp` draws the figure again.\n",
                            experiment.command());
}

std::string summary_of(const SweepFindings& found, const SweepFindings& kept, const fs::path& out) {
  const auto& [plan, results, criterion] = found;
  const auto tables = [](const SweepFindings& of) { return of.accuracy_texts(); };
  std::string model;
  if (plan.exported) {
    model =
        summary_line("model", (out / kSweepModel).string()) + summary_line("", found.exported());
  }
  return fmt::format(
      "{}, scale {}, {:.0f} s\n\n{}\nTest accuracy on {} in %, pruned -> recovered{}\n\n{}{}\nCost "
      "by {}; fractions are of the network with {}\n\n{}\n{}",
      results.experiment, results.scale, results.seconds, found.phases().text(),
      plan.phases.back().data, found.runs_sentence(), tables(found), kept_text(found, kept, tables),
      criterion, found.largest(), found.costs().text(), files_summary(out, 1, model));
}

}  // namespace

Report sweep_report(const Experiment& experiment, const SweepPlan& plan, const Results& results,
                    const fs::path& out, const Results& kept) {
  const SweepFindings found{plan, results}, earlier{plan, kept};
  return {
      markdown_of(experiment, found, earlier), summary_of(found, earlier, out), {found.figure()}};
}

}  // namespace moesaic
