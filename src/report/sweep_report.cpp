// SPDX-License-Identifier: Apache-2.0
#include "moesaic/report/sweep_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "moesaic/base/error.h"
#include "moesaic/base/text.h"
#include "moesaic/config/problem.h"
#include "report_text.h"

namespace moesaic {
namespace {

constexpr int64_t kTerminalColumns = 100;

/// Returns the mean over the runs and, of several, their standard deviation; "-" without a row.
std::string percent(const Results& results, const std::string& row, const char* metric) {
  const ResultRow* found = results.find(row, metric);
  if (found == nullptr) return "-";
  return found->std ? fmt::format("{:.2f} ({:.2f})", found->measured, *found->std)
                    : fmt::format("{:.2f}", found->measured);
}

int64_t runs_of(const Results& results) {
  int64_t most = 0;
  for (const ResultRow& row : results.rows) most = std::max(most, row.runs);
  return most;
}

std::string runs_sentence(const Results& results) {
  if (runs_of(results) == 1) return "";
  return fmt::format(", mean (standard deviation) of {} runs", runs_of(results));
}

/// Says what the numbers behind a choice by layer are.
std::string choices_sentence(const SweepPlan& plan) {
  const bool any = std::any_of(plan.sizes.begin(), plan.sizes.end(),
                               [](const SweepSize& size) { return size.count == 0; });
  return any ? " Behind the name of a choice by layer stand the experts of each layer." : "";
}

TextTable phase_table(const SweepPlan& plan, const Results& results) {
  TextTable table({"phase", "data", "test images", "test accuracy, %"}, 2);
  for (const SweepPhase& phase : plan.phases) {
    table.add({phase.name, phase.data, with_commas(phase.images),
               percent(results, phase.name, "test_accuracy")});
  }
  return table;
}

/// Returns a table of networks' accuracies, "pruned -> recovered".
TextTable accuracy_table(const SweepPlan& plan, const std::vector<std::string>& criteria,
                         const Results& results) {
  std::vector<std::string> header = {"experts"};
  header.insert(header.end(), criteria.begin(), criteria.end());
  TextTable table(header);
  for (const SweepSize& size : plan.sizes) {
    std::vector<std::string> cells = {size.text};
    for (const std::string& criterion : criteria) {
      const std::string row = sweep_row(size.name, criterion);
      cells.push_back(percent(results, row, "accuracy") + " -> " +
                      percent(results, row, "accuracy_recovered"));
    }
    table.add(std::move(cells));
  }
  return table;
}

TextTable cost_table(const SweepPlan& plan, const Results& results, const std::string& criterion) {
  TextTable table({"experts", "parameters", "file", "MFLOPs an image", "images/s", "FLOPs, %",
                   "forward time, %"});
  for (const SweepSize& size : plan.sizes) {
    const auto value = [&](const char* metric) {
      return sweep_value(results, sweep_row(size.name, criterion), metric);
    };
    table.add({size.text, with_commas(std::llround(value("parameters"))),
               bytes_text(value("bytes")), fmt::format("{:.2f}", value("flops") / 1e6),
               with_commas(std::llround(value("images_per_second"))),
               fmt::format("{:.1f}", 100.0 - value("flops_saved")),
               fmt::format("{:.1f}", 100.0 - value("time_saved"))});
  }
  return table;
}

/// Returns one table, or several with fewer criteria where one would be too wide.
std::string accuracy_texts(const SweepPlan& plan, const Results& results) {
  std::string text;
  std::vector<std::string> group;
  const auto flush = [&] {
    if (!text.empty()) text += '\n';
    text += accuracy_table(plan, group, results).text();
    group.clear();
  };
  for (const std::string& criterion : plan.criteria) {
    std::vector<std::string> wider = group;
    wider.push_back(criterion);
    if (!group.empty() && accuracy_table(plan, wider, results).width() > kTerminalColumns) flush();
    group.push_back(criterion);
  }
  flush();
  return text;
}

/// Returns the table of what was kept, as `text` makes it; "" where it has no place: several runs
/// speak for themselves.
std::string kept_text(const Results& results, const Results& kept,
                      const std::function<std::string(const Results&)>& text) {
  if (runs_of(results) > 1 || kept.rows.empty()) return "";
  return fmt::format("\nKept from {} runs, mean (standard deviation)\n\n{}", runs_of(kept),
                     text(kept));
}

std::string exported_sentence(const SweepPlan& plan, const Results& results) {
  return fmt::format("{} of {} experts by {}, recovered; TorchScript, {:.2f} x our forward time",
                     plan.exported->keep, plan.experts, plan.exported->criterion,
                     sweep_value(results, "export", "forward_time_ratio"));
}

}  // namespace

double sweep_value(const Results& results, const std::string& row, const std::string& metric) {
  const ResultRow* found = results.find(row, metric);
  if (found == nullptr) fail("the results have no {} of '{}'", metric, row);
  return found->measured;
}

std::string largest_text(const SweepPlan& plan, const Results& results,
                         const std::string& criterion) {
  const auto parameters = [&](const SweepSize& size) {
    return sweep_value(results, sweep_row(size.name, criterion), "parameters");
  };
  const SweepSize& largest = *std::max_element(
      plan.sizes.begin(), plan.sizes.end(),
      [&](const SweepSize& a, const SweepSize& b) { return parameters(a) < parameters(b); });
  return largest.count > 0 ? fmt::format("{} experts", largest.count) : largest.text;
}

Results kept_results(const Experiment& experiment, const SweepConfig& config) {
  if (experiment.scale != Scale::paper || config.kept.is_null()) return {};
  for (const char* key : {"train", "finetuned", "recover", "whole", "replace", "images"}) {
    const Value* setting = experiment.config.find(key);
    if (setting != nullptr && !arguments_in(*setting).empty()) return {};
  }
  return {.rows = measured_rows(config.kept)};
}

std::string sweep_markdown(const Experiment& experiment, const SweepPlan& plan,
                           const Results& results, const Results& kept) {
  const std::string& criterion = plan.criteria.front();
  const auto table = [&](const Results& of) {
    return accuracy_table(plan, plan.criteria, of).markdown();
  };
  std::string text = fmt::format("# {}\n\n{}\n\n{} It took {:.0f} seconds.\n\n", experiment.name,
                                 experiment.description, scale_text(experiment), results.seconds);
  text += phase_table(plan, results).markdown();
  text += fmt::format(
      "\n## Accuracy on {}\n\nTest accuracy in %, pruned -> recovered, by experts kept in each "
      "layer and by what ranked them{}.{}\n\n{}{}\n![Accuracy and cost over the fraction of pruned "
      "parameters](figure.svg)\n",
      plan.phases.back().data, runs_sentence(results), choices_sentence(plan), table(results),
      kept_text(results, kept, table));
  text += fmt::format(
      "\n## Cost, experts ranked by {}\n\nThe last two columns are fractions of the network with "
      "{}. FLOPs count the matrix products of the rows that the test split's routing really "
      "computed. Speed is the median over forward passes in which all networks took turns.\n\n{}",
      criterion, largest_text(plan, results, criterion),
      cost_table(plan, results, criterion).markdown());
  if (plan.exported) {
    text += fmt::format("\nExported: `{}` ({}).\n", kSweepModel, exported_sentence(plan, results));
  }
  text += fmt::format("\n## Every value\n\n{}\n\n{}",
                      results.have_paper_values() ? "A \"-\" stands where the paper has no value."
                                                  : "No paper has this task.",
                      results_table(results).markdown());
  text += fmt::format("\nMade by `{}`; `gnuplot figure.gp` draws the figure again.\n",
                      table_command(experiment));
  return text;
}

std::string sweep_summary(const Experiment& experiment, const SweepPlan& plan,
                          const Results& results, const std::filesystem::path& out,
                          const Results& kept) {
  const std::string& criterion = plan.criteria.front();
  std::string text =
      fmt::format("{}, scale {}, {:.0f} s\n\n", experiment.name, results.scale, results.seconds);
  text += phase_table(plan, results).text();
  text +=
      fmt::format("\nTest accuracy on {} in %, pruned -> recovered{}\n\n{}",
                  plan.phases.back().data, runs_sentence(results), accuracy_texts(plan, results));
  text += kept_text(results, kept, [&](const Results& of) { return accuracy_texts(plan, of); });
  text += fmt::format("\nCost by {}; fractions are of the network with {}\n\n{}", criterion,
                      largest_text(plan, results, criterion),
                      cost_table(plan, results, criterion).text());
  text += "\n" + summary_line("figure", (out / "figure.svg").string() + ", figure.png");
  if (plan.exported) {
    text += summary_line("model", (out / kSweepModel).string());
    text += summary_line("", exported_sentence(plan, results));
  }
  return text + summary_line("report", (out / "report.md").string()) +
         summary_line("results", (out / "results.json").string());
}

}  // namespace moesaic
