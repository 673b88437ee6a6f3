// SPDX-License-Identifier: Apache-2.0
#include "moesaic/report/runs.h"

#include <fmt/format.h>

#include <set>

#include "moesaic/base/text.h"
#include "moesaic/report/comparison.h"

namespace moesaic {
namespace {

/// A table that one row has, or several as the same.
struct TitledTable {
  std::string rows, rest;  ///< Names of the rows, and what else the heading says.
  TextTable table;

  std::string title() const { return rows + rest; }
};

using Numbers = std::vector<double>;

Numbers column_sums(const std::vector<Numbers>& rows) {
  Numbers sums(rows.front().size());
  for (const Numbers& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) sums[i] += row[i];
  }
  return sums;
}

/// Returns the table as text. Whole numbers are counts; their initial and final sums are listed.
TextTable text_table(const Metric& metric, const MeasuredTable& names,
                     const std::vector<Numbers>& rows, const Numbers& initial) {
  std::vector<std::string> header = {metric.label};
  header.insert(header.end(), names.columns.begin(), names.columns.end());
  TextTable table(header);
  const auto add = [&](const std::string& name, const Numbers& numbers) {
    std::vector<std::string> cells = {name};
    for (const double number : numbers)
      cells.push_back(fmt::format("{:.{}f}", number, metric.digits));
    table.add(cells);
  };
  if (metric.digits == 0 && !initial.empty()) add("all, before training", initial);
  if (metric.digits == 0) add("all, at the end", column_sums(rows));
  for (size_t r = 0; r < rows.size(); ++r) {
    add(r < names.rows.size() ? names.rows[r] : std::to_string(r + 1), rows[r]);
  }
  return table;
}

Numbers initial_sums(const RunRecord& run, const std::string& metric) {
  if (run.snapshots.empty()) return {};
  const auto& tables = run.snapshots.front().tables;
  return tables.contains(metric) ? column_sums(tables.at(metric).values) : Numbers{};
}

/// Wider tables are for figures and runs.json.
constexpr size_t kMaxColumns = 20;

/// Adds the table unless an earlier row has the same, whose heading gets the name then.
void add_table(std::vector<TitledTable>& tables, TitledTable table) {
  for (TitledTable& earlier : tables) {
    if (earlier.rest != table.rest || earlier.table.text() != table.table.text()) continue;
    earlier.rows += ", " + table.rows;
    return;
  }
  tables.push_back(std::move(table));
}

/// Returns the tables of each row's first run, each beside the paper's.
std::vector<TitledTable> tables_of(const Experiment& experiment, const RunsConfig& config,
                                   const std::vector<MeasuredRow>& rows) {
  std::vector<TitledTable> tables;
  for (const MeasuredRow& row : rows) {
    const RunRecord& run = row.runs.front();
    for (const Metric& metric : row.metrics) {
      const auto found = run.final.tables.find(metric.name);
      if (found == run.final.tables.end()) continue;
      const MeasuredTable& table = found->second;
      if (table.columns.size() > kMaxColumns) continue;
      const std::string which = first_run_name(row).substr(row.name.size());
      add_table(tables, {row.name,
                         fmt::format("{}, {} after {}", which, metric.label,
                                     count_text(run.final.step, "step")),
                         text_table(metric, table, table.values, initial_sums(run, metric.name))});
      if (experiment.scale == Scale::quick) continue;
      const std::optional<PaperTable> paper = paper_table(config.paper, row.name, metric.name);
      if (!paper || paper->rows.front().size() != table.columns.size()) continue;
      tables.push_back({"The paper's " + row.name, ", " + metric.label,
                        text_table(metric, table, paper->rows, paper->initial)});
    }
  }
  return tables;
}

/// Returns a list of what the metrics of the results are, with their units.
std::string meanings(const std::vector<MeasuredRow>& rows, const Results& results) {
  std::string text;
  std::set<std::string> listed;
  for (const ResultRow& result : results.rows) {
    for (const MeasuredRow& row : rows) {
      const Metric* const metric = find_metric(row.metrics, result.metric);
      if (metric == nullptr || !listed.insert(metric->name).second) continue;
      const std::string own = metric->name + ": ";  // A label after a phase begins with the name.
      const std::string label =
          metric->label.starts_with(own) ? metric->label.substr(own.size()) : metric->label;
      text += fmt::format("- `{}`: {}\n", metric->name, label);
    }
  }
  return text;
}

/// Returns the 95 % intervals of fits and ratios, as a list after an empty line; "" without any.
std::string intervals(const RunsConfig& config, const Results& results) {
  std::string text;
  const auto add = [&](const std::string& row, const std::string& metric) {
    const ResultRow* const found = results.find(row, metric);
    if (found == nullptr) return;
    const auto half = Moments{found->measured, found->std, found->num_runs}.confidence_half_width();
    if (!half || *half == 0.0) return;
    text += fmt::format("- `{}` of {}: {:.3g}, {:.3g} to {:.3g}\n", metric, row, found->measured,
                        found->measured - *half, found->measured + *half);
  };
  for (const FitConfig& fit : config.fits) add(fit.name, fit.exponent());
  for (const RatioConfig& ratio : config.ratios) add(ratio.name, ratio.metric);
  if (text.empty()) return "";
  return "\n95 % intervals by Student's t, of ratios and of sizes at a level by the jackknife over "
         "seeds:\n\n" +
         text;
}

std::string markdown_of(const Experiment& experiment, const RunsConfig& config,
                        const std::vector<MeasuredRow>& rows, const Results& results,
                        const std::vector<TitledTable>& tables) {
  std::string text = fmt::format("# {}\n\n{}\n\n{} Made by `{}` in {:.0f} s.\n\n", experiment.name,
                                 experiment.description, experiment.scale_text(),
                                 experiment.command(), results.seconds);
  for (size_t i = 0; i < config.plots.size(); ++i) {
    text += fmt::format("![{}]({}.svg)\n\n", metric_of(rows, config.plots[i].metrics[0]).label,
                        figure_stem(i));
  }
  text += fmt::format(
      "Mean and standard deviation over n runs, which differ in their seeds.{}\n\n{}\n{}",
      results_note(results), results_table(results).markdown(), meanings(rows, results));
  text += intervals(config, results);
  text += comparison_markdown(compared_with_first(results.rows));
  if (!tables.empty()) {
    text +=
        "\nThe following tables are of each row's first run. Experts have no order: compare with "
        "the paper only what does not depend on one.\n";
  }
  for (const TitledTable& item : tables) {
    text += fmt::format("\n{}:\n\n{}", item.title(), item.table.markdown());
  }
  return text;
}

}  // namespace

std::string figure_stem(size_t index) {
  return index == 0 ? "figure" : fmt::format("figure-{}", index + 1);
}

std::string summary_line(const std::string& what, const std::string& value) {
  return fmt::format("{:<9}{}\n", what, value);
}

std::string files_summary(const fs::path& out, size_t figures, const std::string& more) {
  std::string text;
  for (size_t i = 0; i < figures; ++i) {
    text += summary_line(i == 0 ? "figure" : "", (out / (figure_stem(i) + ".svg")).string() +
                                                     fmt::format(", {}.png", figure_stem(i)));
  }
  return text + more + summary_line("report", (out / "report.md").string()) +
         summary_line("results", (out / "results.json").string());
}

Report runs_report(const Experiment& experiment, const RunsConfig& config,
                   const std::vector<MeasuredRow>& rows, const Results& results,
                   const fs::path& out) {
  const std::vector<TitledTable> tables = tables_of(experiment, config, rows);
  std::string summary = fmt::format("{}, scale {}, {:.0f} s\n\n{}", results.experiment,
                                    results.scale, results.seconds, results_table(results).text());
  for (const TitledTable& item : tables) {
    summary += fmt::format("\n{}\n\n{}", item.title(), item.table.text());
  }
  return {markdown_of(experiment, config, rows, results, tables),
          summary + "\n" + files_summary(out, config.plots.size()),
          runs_figures(config, rows, results)};
}

}  // namespace moesaic
