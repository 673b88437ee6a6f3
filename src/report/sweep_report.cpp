// SPDX-License-Identifier: Apache-2.0
#include "moesaic/report/sweep_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>

#include "moesaic/base/text.h"
#include "moesaic/report/measurement.h"
#include "report_text.h"

namespace moesaic {
namespace {

constexpr int64_t kTerminalColumns = 100;

/// Returns the mean over the runs and, of several, their standard deviation.
std::string percent(const std::vector<double>& values) {
  const Moments over_runs = moments(values);
  return over_runs.n == 1 ? fmt::format("{:.2f}", over_runs.mean)
                          : fmt::format("{:.2f} ({:.2f})", over_runs.mean, over_runs.std);
}

std::string runs_sentence(const SweepOutcome& outcome) {
  if (outcome.runs() == 1) return "";
  return fmt::format(", mean (standard deviation) of {} runs", outcome.runs());
}

/// Returns the first of the sizes with the most parameters.
const SweepSize& largest_size(const SweepOutcome& outcome, const std::string& criterion) {
  return *std::max_element(
      outcome.sizes.begin(), outcome.sizes.end(), [&](const SweepSize& a, const SweepSize& b) {
        return outcome.at(a.name, criterion).parameters < outcome.at(b.name, criterion).parameters;
      });
}

WorkFraction work_fraction(const SweepOutcome& outcome, const SweepPoint& point) {
  const SweepPoint& whole =
      outcome.at(largest_size(outcome, point.criterion).name, point.criterion);
  return {100.0 * static_cast<double>(point.parameters) / static_cast<double>(whole.parameters),
          100.0 * moments(point.flops).mean / moments(whole.flops).mean,
          100.0 * whole.images_per_second / point.images_per_second};
}

/// Says what the numbers behind a choice by layer are.
std::string choices_sentence(const SweepOutcome& outcome) {
  const bool any = std::any_of(outcome.sizes.begin(), outcome.sizes.end(),
                               [](const SweepSize& size) { return size.count == 0; });
  return any ? " Behind the name of a choice by layer stand the experts of each layer." : "";
}

/// Returns what each run lost against its fine-tuned network, in points.
std::vector<double> lost(const SweepOutcome& outcome, const std::vector<double>& accuracy) {
  std::vector<double> points = outcome.phases.back().accuracy;
  for (size_t i = 0; i < points.size(); ++i) points[i] -= accuracy[i];
  return points;
}

TextTable phase_table(const SweepOutcome& outcome) {
  TextTable table({"phase", "data", "test images", "test accuracy, %"}, 2);
  for (const SweepPhase& phase : outcome.phases) {
    table.add({phase.name, phase.data, with_commas(phase.images), percent(phase.accuracy)});
  }
  return table;
}

/// Returns the text of a network's accuracies, "pruned -> recovered".
using Accuracies =
    std::function<std::string(const std::string& size, const std::string& criterion)>;

Accuracies measured_in(const SweepOutcome& outcome) {
  return [&](const std::string& size, const std::string& criterion) {
    const SweepPoint& point = outcome.at(size, criterion);
    return percent(point.accuracy) + " -> " + percent(point.accuracy_recovered);
  };
}

/// Returns those of rows that were kept, "-" where there is none.
Accuracies kept_in(const std::vector<ResultRow>& rows) {
  return [&](const std::string& size, const std::string& criterion) {
    const auto text = [&](const char* metric) -> std::string {
      for (const ResultRow& row : rows) {
        if (row.name != sweep_row(size, criterion) || row.metric != metric) continue;
        return row.std ? fmt::format("{:.2f} ({:.2f})", row.measured, *row.std)
                       : fmt::format("{:.2f}", row.measured);
      }
      return "-";
    };
    return text("accuracy") + " -> " + text("accuracy_recovered");
  };
}

TextTable accuracy_table(const SweepOutcome& outcome, const std::vector<std::string>& criteria,
                         const Accuracies& accuracies) {
  std::vector<std::string> header = {"experts"};
  header.insert(header.end(), criteria.begin(), criteria.end());
  TextTable table(header);
  for (const SweepSize& size : outcome.sizes) {
    std::vector<std::string> row = {size.text};
    for (const std::string& criterion : criteria) row.push_back(accuracies(size.name, criterion));
    table.add(std::move(row));
  }
  return table;
}

TextTable cost_table(const SweepOutcome& outcome, const std::string& criterion) {
  TextTable table({"experts", "parameters", "file", "MFLOPs an image", "images/s", "FLOPs, %",
                   "forward time, %"});
  for (const SweepSize& size : outcome.sizes) {
    const SweepPoint& point = outcome.at(size.name, criterion);
    const WorkFraction fraction = work_fraction(outcome, point);
    table.add({size.text, with_commas(point.parameters),
               bytes_text(static_cast<double>(point.bytes)),
               fmt::format("{:.2f}", moments(point.flops).mean / 1e6),
               with_commas(std::llround(point.images_per_second)),
               fmt::format("{:.1f}", fraction.flops), fmt::format("{:.1f}", fraction.time)});
  }
  return table;
}

/// Returns one table, or several with fewer criteria where one would be too wide.
std::string accuracy_texts(const SweepOutcome& outcome, const Accuracies& accuracies) {
  std::string text;
  std::vector<std::string> group;
  const auto flush = [&] {
    if (!text.empty()) text += '\n';
    text += accuracy_table(outcome, group, accuracies).text();
    group.clear();
  };
  for (const std::string& criterion : outcome.criteria) {
    std::vector<std::string> wider = group;
    wider.push_back(criterion);
    if (!group.empty() && accuracy_table(outcome, wider, accuracies).width() > kTerminalColumns)
      flush();
    group.push_back(criterion);
  }
  flush();
  return text;
}

int64_t most_runs(const std::vector<ResultRow>& rows) {
  int64_t most = 0;
  for (const ResultRow& row : rows) most = std::max(most, row.runs);
  return most;
}

/// Returns the table of the rows that were kept, as `text` makes it of them; "" where none has a
/// place: several runs speak for themselves.
std::string kept_text(const SweepOutcome& outcome, const std::vector<ResultRow>& kept,
                      const std::function<std::string(const Accuracies&)>& text) {
  if (outcome.runs() > 1 || kept.empty()) return "";
  return fmt::format("\nKept from {} runs, mean (standard deviation)\n\n{}", most_runs(kept),
                     text(kept_in(kept)));
}

std::string paper_sentence(const Results& results) {
  if (results.have_paper_values()) return "A \"-\" stands where the paper has no value.";
  return "No paper has this task.";
}

std::string exported_sentence(const SweepOutcome& outcome) {
  return fmt::format("{} of {} experts by {}, recovered; TorchScript, {:.2f} x our forward time",
                     outcome.exported->choice.keep, outcome.experts,
                     outcome.exported->choice.criterion, outcome.exported->time);
}

}  // namespace

std::vector<WorkFraction> work_fractions(const SweepOutcome& outcome,
                                         const std::string& criterion) {
  std::vector<WorkFraction> fractions;
  for (const SweepSize& size : outcome.sizes) {
    fractions.push_back(work_fraction(outcome, outcome.at(size.name, criterion)));
  }
  return fractions;
}

std::string largest_text(const SweepOutcome& outcome, const std::string& criterion) {
  const SweepSize& size = largest_size(outcome, criterion);
  return size.count > 0 ? fmt::format("{} experts", size.count) : size.text;
}

std::string sweep_row(const std::string& size, const std::string& criterion) {
  return size + "/" + criterion;
}

const std::vector<std::string>& sweep_metrics(bool of_network) {
  static const std::vector<std::string> of_networks = {
      "accuracy",          "accuracy_lost", "accuracy_recovered", "accuracy_lost_recovered",
      "parameters",        "flops",         "images_per_second",  "bytes",
      "parameters_pruned", "flops_saved",   "time_saved"};
  static const std::vector<std::string> of_phases = {"test_accuracy"};
  return of_network ? of_networks : of_phases;
}

std::vector<ResultRow> sweep_rows(const SweepOutcome& outcome) {
  std::vector<ResultRow> rows;
  for (const SweepPhase& phase : outcome.phases) {
    rows.push_back(row_of_runs(phase.name, "test_accuracy", phase.accuracy));
  }
  for (const SweepPoint& point : outcome.points) {
    const std::string name = sweep_row(point.size, point.criterion);
    const auto add = [&](const char* metric, const std::vector<double>& values) {
      rows.push_back(row_of_runs(name, metric, values));
    };
    add("accuracy", point.accuracy);
    add("accuracy_lost", lost(outcome, point.accuracy));
    add("accuracy_recovered", point.accuracy_recovered);
    add("accuracy_lost_recovered", lost(outcome, point.accuracy_recovered));
    add("parameters", {static_cast<double>(point.parameters)});
    add("flops", point.flops);
    add("images_per_second", {point.images_per_second});
    add("bytes", {static_cast<double>(point.bytes)});
    const WorkFraction left = work_fraction(outcome, point);
    add("parameters_pruned", {100.0 - left.parameters});
    add("flops_saved", {100.0 - left.flops});
    add("time_saved", {100.0 - left.time});
  }
  if (outcome.exported) {
    rows.push_back(row_of_runs("export", "forward_time_ratio", {outcome.exported->time}));
  }
  return rows;
}

std::string sweep_markdown(const Experiment& experiment, const SweepOutcome& outcome,
                           const Results& results, const std::vector<ResultRow>& kept) {
  const std::string& data = outcome.phases.back().data;
  const std::string& criterion = outcome.criteria.front();
  const auto table = [&](const Accuracies& accuracies) {
    return accuracy_table(outcome, outcome.criteria, accuracies).markdown();
  };
  std::string text = fmt::format("# {}\n\n{}\n\n{} It took {:.0f} seconds.\n\n", experiment.name,
                                 experiment.description, scale_text(experiment), results.seconds);
  text += phase_table(outcome).markdown();
  text += fmt::format(
      "\n## Accuracy on {}\n\nTest accuracy in %, pruned -> recovered, by experts kept in each "
      "layer and by what ranked them{}.{}\n\n{}{}\n![Accuracy and cost over the fraction of pruned "
      "parameters](figure.svg)\n",
      data, runs_sentence(outcome), choices_sentence(outcome), table(measured_in(outcome)),
      kept_text(outcome, kept, table));
  text += fmt::format(
      "\n## Cost, experts ranked by {}\n\nThe last two columns are fractions of the network with "
      "{}. FLOPs count the matrix products of the rows that the test split's routing really "
      "computed. Speed is the median over forward passes in which all networks took turns.\n\n{}",
      criterion, largest_text(outcome, criterion), cost_table(outcome, criterion).markdown());
  if (outcome.exported) {
    text +=
        fmt::format("\nExported: `{}` ({}).\n", outcome.exported->file, exported_sentence(outcome));
  }
  text += fmt::format("\n## Every value\n\n{}\n\n{}", paper_sentence(results),
                      results_table(results).markdown());
  text += fmt::format("\nMade by `{}`; `gnuplot figure.gp` draws the figure again.\n",
                      table_command(experiment));
  return text;
}

std::string sweep_summary(const Experiment& experiment, const SweepOutcome& outcome,
                          const Results& results, const std::filesystem::path& out,
                          const std::vector<ResultRow>& kept) {
  const std::string& criterion = outcome.criteria.front();
  std::string text =
      fmt::format("{}, scale {}, {:.0f} s\n\n", experiment.name, results.scale, results.seconds);
  text += phase_table(outcome).text();
  text += fmt::format("\nTest accuracy on {} in %, pruned -> recovered{}\n\n{}",
                      outcome.phases.back().data, runs_sentence(outcome),
                      accuracy_texts(outcome, measured_in(outcome)));
  text += kept_text(outcome, kept, [&](const Accuracies& accuracies) {
    return accuracy_texts(outcome, accuracies);
  });
  text += fmt::format("\nCost by {}; fractions are of the network with {}\n\n{}", criterion,
                      largest_text(outcome, criterion), cost_table(outcome, criterion).text());
  text += "\n" + summary_line("figure", (out / "figure.svg").string() + ", figure.png");
  if (outcome.exported) {
    text += summary_line("model", (out / outcome.exported->file).string());
    text += summary_line("", exported_sentence(outcome));
  }
  text += summary_line("report", (out / "report.md").string());
  text += summary_line("results", (out / "results.json").string());
  return text;
}

}  // namespace moesaic
