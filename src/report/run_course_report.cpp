// SPDX-License-Identifier: Apache-2.0
#include "moesaic/report/run_course_report.h"

#include <fmt/format.h>

#include <functional>

#include "report_text.h"

namespace moesaic {
namespace {

using Counts = std::vector<std::vector<int64_t>>;

/// A table and the line that stands above it.
struct TitledTable {
  std::string title;
  TextTable table;
};

std::vector<std::string> numbered(const std::string& first, const std::string& name, size_t count) {
  std::vector<std::string> cells = {first};
  for (size_t i = 1; i <= count; ++i) cells.push_back(fmt::format("{}{}", name, i));
  return cells;
}

std::vector<int64_t> column_sums(const Counts& rows) {
  std::vector<int64_t> sums(rows.front().size());
  for (const auto& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) sums[i] += row[i];
  }
  return sums;
}

TextTable dispatch_table(const std::vector<int64_t>& initial, const Counts& final) {
  TextTable table(numbered("expert", "", initial.size()));
  const auto add = [&](const std::string& name, const std::vector<int64_t>& counts) {
    std::vector<std::string> cells = {name};
    for (const int64_t count : counts) cells.push_back(std::to_string(count));
    table.add(cells);
  };
  add("initial dispatch", initial);
  add("final dispatch", column_sums(final));
  for (size_t k = 0; k < final.size(); ++k) add(fmt::format("cluster {}", k + 1), final[k]);
  return table;
}

std::vector<TitledTable> dispatch_tables(const RunCourseConfig& config,
                                         const std::vector<RunCourse>& courses, bool with_paper) {
  std::vector<TitledTable> tables;
  for (size_t r = 0; r < courses.size(); ++r) {
    const RunCourse& course = courses[r];
    tables.push_back({fmt::format("{}, {} updates, test accuracy {:.2f} %", config.rows[r].name,
                                  course.steps, course.test_accuracy),
                      dispatch_table(column_sums(course.points.front().dispatch),
                                     course.points.back().dispatch)});
    const auto& paper = config.rows[r].paper;
    if (!with_paper || !paper) continue;
    tables.push_back({fmt::format("The paper's, test accuracy {:.2f} %", paper->test_accuracy),
                      dispatch_table(paper->initial, paper->final)});
  }
  return tables;
}

/// Rows: experts. Columns: signals, then centres.
TextTable product_table(const std::vector<std::vector<double>>& signals,
                        const std::vector<std::vector<double>>& centres) {
  std::vector<std::string> header = numbered("expert", "v", signals.front().size());
  for (size_t k = 1; k <= centres.front().size(); ++k) header.push_back(fmt::format("c{}", k));
  TextTable table(header);
  for (size_t e = 0; e < signals.size(); ++e) {
    std::vector<std::string> cells = {std::to_string(e + 1)};
    for (const auto* products : {&signals[e], &centres[e]}) {
      for (const double product : *products) cells.push_back(fmt::format("{:.3f}", product));
    }
    table.add(cells);
  }
  return table;
}

std::vector<TitledTable> tables_of(const Experiment& experiment, const RunCourseConfig& config,
                                   const std::vector<RunCourse>& courses) {
  if (config.shows == "entropy") return {};
  std::vector<TitledTable> tables =
      dispatch_tables(config, courses, experiment.scale == Scale::paper);
  if (config.shows == "dispatch") return tables;
  const CoursePoint& last = courses.front().points.back();
  tables.push_back(
      {"Filters at the end: an expert's largest product with each signal and centre, in magnitude",
       product_table(last.expert_signal, last.expert_centre)});
  tables.push_back({"Router at the end: an expert's products with signals and centres",
                    product_table(last.router_signal, last.router_centre)});
  return tables;
}

std::string caption_of(const std::string& shows) {
  if (shows == "entropy") return "Dispatch entropy over training";
  if (shows == "dispatch") return "Final dispatch";
  return "Products of weights with signals and centres over training";
}

}  // namespace

std::string run_course_markdown(const Experiment& experiment, const RunCourseConfig& config,
                                const std::vector<RunCourse>& courses, const Results& results) {
  std::string text = fmt::format(
      "# {}\n\n{}\n\n{} Made by `{}` in {:.0f} s.\n\n![{}](figure.svg)\n\n"
      "Entropy in nats and counts are those of the training data, accuracy in % that of the test "
      "data; \"-\" where the paper has no value. Experts and clusters have no order: only what "
      "they "
      "have in common can be held against the paper's.\n\n{}",
      experiment.name, experiment.description, scale_text(experiment), table_command(experiment),
      results.seconds, caption_of(config.shows), pairs_table(results).markdown());
  for (const TitledTable& item : tables_of(experiment, config, courses)) {
    text += fmt::format("\n{}:\n\n{}", item.title, item.table.markdown());
  }
  return text;
}

std::string run_course_summary(const Experiment& experiment, const RunCourseConfig& config,
                               const std::vector<RunCourse>& courses, const Results& results,
                               const std::filesystem::path& out) {
  std::string text =
      fmt::format("{}, scale {}, {:.0f} s\n\n{}", experiment.name, scale_name(experiment.scale),
                  results.seconds, pairs_table(results).text());
  for (const TitledTable& item : tables_of(experiment, config, courses)) {
    text += fmt::format("\n{}\n\n{}", item.title, item.table.text());
  }
  return text + fmt::format("\nfigure   {}, figure.png\nreport   {}\nresults  {}\n",
                            (out / "figure.svg").string(), (out / "report.md").string(),
                            (out / "results.json").string());
}

}  // namespace moesaic
