// SPDX-License-Identifier: Apache-2.0
// What runs measure, numbers and small tables by the name of a metric, at their end and in
// snapshots of their training; statistics of runs; and what an experiment found, beside what a
// paper prints.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "moesaic/config/schema.h"

namespace moesaic {

/// Mean and spread of values.
struct Moments {
  double mean = 0.0;
  std::optional<double> std = {};  ///< Sample deviation (divisor n - 1); unset for one value.
  int64_t n = 0;

  /// Returns the standard error of the mean, std / sqrt(n).
  std::optional<double> standard_error() const;
  /// Returns half of the width of the mean's 95 % interval, by Student's t with n - 1 degrees of
  /// freedom.
  std::optional<double> confidence_half_width() const;
};

/// Returns mean and standard deviation of at least one value.
Moments moments(const std::vector<double>& values);

/// Returns the t with |T| <= t at this probability (above 0, below 1), T having Student's
/// distribution with at least one degree of freedom.
double t_quantile(double probability, int64_t degrees_of_freedom);

/// Presentation of a metric.
struct Metric {
  std::string name;
  std::string label;         ///< Label with unit, e.g. "test accuracy, %".
  int digits = 2;            ///< Digits after the decimal point.
  bool is_table = false;     ///< Whether it is a table rather than a number.
  bool is_optional = false;  ///< Whether a run may have none, where there is nothing to measure.
  /// Possible values, in which error bars stay.
  double min = std::numeric_limits<double>::lowest(), max = std::numeric_limits<double>::max();
  /// Value that guessing hardly exceeds, for an accuracy.
  double chance_level = std::numeric_limits<double>::lowest();
};

/// Returns the metric of a number from 0 to `most`.
inline Metric amount_metric(std::string name, std::string label, int digits = 2,
                            double most = Metric().max) {
  return {.name = std::move(name),
          .label = std::move(label),
          .digits = digits,
          .min = 0.0,
          .max = most};
}
/// Returns the metric of a table of numbers.
inline Metric table_metric(std::string name, std::string label, int digits = 2) {
  return {.name = std::move(name), .label = std::move(label), .digits = digits, .is_table = true};
}

/// A table of numbers with named rows and columns, e.g. examples by cluster and expert.
struct MeasuredTable {
  std::vector<std::string> rows, columns;
  std::vector<std::vector<double>> values;  ///< Indexed by [row][column].
};
void describe(auto& f, MeasuredTable& c) {
  f("rows", c.rows, "names of the rows", required, not_empty);
  f("columns", c.columns, "names of the columns", required, not_empty);
  f("values", c.values, "numbers of the table: a list per row, with a number per column", required,
    not_empty);
}
ConfigProblem config_problem(const MeasuredTable& table);

/// Name of the metric that is the time of a training step, and its name in earlier versions, by
/// which files may hold it.
inline constexpr const char *kStepSeconds = "step_seconds", *kFormerStepSeconds = "update_seconds";

/// What the probes measured at a step.
struct Measurement {
  int64_t step = 0;  ///< Number of steps made before.
  std::map<std::string, double> numbers;
  std::map<std::string, MeasuredTable> tables;
};
void describe(auto& f, Measurement& c) {
  f("step", c.step, "number of steps made before the measurement", required, at_least(0));
  f("numbers", c.numbers, "measured numbers by metric");
  f("tables", c.tables, "measured tables by metric");
}

/// What a run measured.
struct RunRecord {
  Measurement final;                   ///< Measurement after the last step.
  std::vector<Measurement> snapshots;  ///< Measurements by step, the last at the end; empty
                                       ///< without probes.
};
void describe(auto& f, RunRecord& c) {
  f("final", c.final, "measurements at the end of the run", required);
  f("snapshots", c.snapshots, "measurements made during training");
}

/// The runs of one row of an experiment, by seed.
struct MeasuredRow {
  std::string name;
  std::vector<Metric> metrics;  ///< Metrics of all its probes.
  std::vector<RunRecord> runs = {};
  int64_t steps_before_last_phase = 0;  ///< Steps before the last phase that makes any.
  std::vector<Metric> snapshot_metrics = {};
  int64_t first_seed = 1;  ///< Seed of the first run; those of the others follow.
};

/// Returns the name of a row of which the first run alone is shown, and says so where it has
/// others: "row (run 1 of 3)".
std::string first_run_name(const MeasuredRow& row);

/// Returns the metric of this name, or nullptr.
const Metric* find_metric(const std::vector<Metric>& metrics, const std::string& name);
/// Returns the metric from the first row that has it. Throws Error (usage) if none has.
const Metric& metric_of(const std::vector<MeasuredRow>& rows, const std::string& name);

/// A table in plain text or Markdown. The first columns are aligned left, numbers right. Cells are
/// ASCII.
class TextTable {
 public:
  /// `left_columns` of the columns are aligned left.
  explicit TextTable(std::vector<std::string> header, size_t left_columns = 1);

  /// Appends a row. Throws Error (usage) unless it has one cell per column.
  void add(std::vector<std::string> row);

  /// Returns plain text: columns padded to their widest cell, two spaces apart, lines trimmed.
  std::string text() const;
  /// Returns the table in Markdown.
  std::string markdown() const;

 private:
  /// Returns the cells of a row, padded to the widths of their columns, with `between` in between.
  std::string line_of(const std::vector<std::string>& row, std::string_view between) const;

  std::vector<std::vector<std::string>> rows_;  ///< The first row is the header.
  std::vector<size_t> widths_;                  ///< Of the columns.
  size_t left_columns_;
};

/// Formats 1234567 as "1,234,567".
std::string with_commas(int64_t number);

/// A metric's value in each run, by seed.
using SeedValues = std::map<int64_t, double>;

/// What a paper claims of a value without printing it, such as "within one point".
struct PaperBound {
  std::optional<double> at_most, at_least;
};
void describe(auto& f, PaperBound& c) {
  f("at_most", c.at_most, "largest value that agrees with the paper");
  f("at_least", c.at_least, "smallest value that agrees with the paper");
}
ConfigProblem config_problem(const PaperBound& bound);

/// A value that a paper prints, or its bound; neither where it says nothing.
struct PaperNumber {
  std::optional<double> value = {}, std = {};
  std::optional<PaperBound> bound = {};
};

/// A measured value and, where a paper prints it, the paper's value.
struct ResultRow {
  std::string name, metric;
  double measured = 0.0;           ///< Mean over the runs.
  std::optional<double> std = {};  ///< Of the runs, see Moments; unset for one run.
  int64_t num_runs = 1;
  std::optional<double> min = {}, median = {}, max = {};  ///< Over the runs; unset for one run.
  SeedValues values = {};  ///< Empty of what is computed from other rows.
  PaperNumber paper = {};
  int digits = 2;  ///< Decimal places of values below 1000.

  /// Returns "inside" or "outside" of the paper's range, value - std to value + std. Of
  /// a bound, "met" or "not met" where the whole 95 % interval of the mean is on one side of it,
  /// else "open", as with a single run. Empty where the paper prints neither.
  std::string verdict() const;
};

/// Returns the row of this name and metric, or nullptr.
const ResultRow* find_result(const std::vector<ResultRow>& rows, std::string_view name,
                             std::string_view metric);

/// Returns the row of a metric's values: their mean and, of several, their spread. There must be a
/// value.
ResultRow row_of_runs(const std::string& name, const std::string& metric, SeedValues values);

/// The results of an experiment.
struct Results {
  std::string experiment, scale;
  std::vector<ResultRow> rows = {};
  double seconds = 0.0;  ///< Wall time of the command.

  /// Returns the row of this name and metric, or nullptr.
  const ResultRow* find(std::string_view name, std::string_view metric) const {
    return find_result(rows, name, metric);
  }
  /// Returns whether any row stands beside a paper's value.
  bool has_paper_values() const;
};

/// Returns {"experiment", "scale", "rows": [{"name", "metric", "measured", "std", "runs", "min",
/// "median", "max", "values", "paper", "paper_std", "paper_bound", "verdict"}], "seconds"};
/// "values" has each run's by seed, and what is unset is null. Throws Error for a value that is not
/// finite.
Json to_json(const Results& results);

/// Returns the rows of results.json with what was measured: the runs' values and what follows from
/// them. Files of version 0.2 have only means, numbers of runs, and standard deviations
/// divided by n, which become those of a sample. Throws Error (usage) with the location of what is
/// missing.
std::vector<ResultRow> measured_rows(const Value& results);

/// Returns a table of every row: n, mean and standard deviation of its runs (median, min and max
/// where any row has several), the paper's mean and standard deviation, the verdict; "-" for unset
/// values.
TextTable results_table(const Results& results);

/// Returns sentences on the table's columns of standard deviations and verdicts, if it has them,
/// each behind a space.
std::string results_note(const Results& results);

/// What a paper prints, by row and metric: a value, [value, std], a bound, or a table.
using PaperValues = std::map<std::string, std::map<std::string, Value>>;

/// A table that a paper prints as an example; its rows and columns may be in another order.
struct PaperTable {
  std::vector<std::vector<double>> rows;
  std::vector<double> initial;  ///< Sums over the rows before training; empty if not printed.
};
void describe(auto& f, PaperTable& c) {
  f("rows", c.rows, "numbers of the table: a list per row", required, not_empty);
  f("initial", c.initial, "sums over the rows before training");
}
ConfigProblem config_problem(const PaperTable& table);

/// Returns what is wrong with a paper's values for these rows.
ConfigProblem paper_problem(const PaperValues& paper, const std::vector<std::string>& rows);
/// Returns the paper's value for a row's metric. Throws Error (usage) for another kind of value.
PaperNumber paper_number(const PaperValues& paper, const std::string& row,
                         const std::string& metric);
/// Returns the paper's table for a row's metric, if it prints one. Throws Error (usage) for another
/// kind of value.
std::optional<PaperTable> paper_table(const PaperValues& paper, const std::string& row,
                                      const std::string& metric);

/// A result that is made of others: a row's metric over that of another row; or, of rows that
/// differ in a size x, the x at which one curve reaches a level over the x at which another one
/// does.
struct RatioConfig {
  std::string name, metric, source_metric, numerator, denominator;
  std::optional<double> level;
  std::vector<double> x;
};
void describe(auto& f, RatioConfig& c) {
  f("name", c.name, "name of the row in the results", required, not_empty);
  f("metric", c.metric, "name of the ratio's metric in the results", required, not_empty);
  f("source_metric", c.source_metric, "name of the metric that is divided, or that the curves show",
    required, not_empty, renamed_from("of"));
  f("level", c.level,
    "metric value at which the sizes of the two curves are divided; null: the rows' metrics are "
    "divided",
    renamed_from("reaches"));
  f("x", c.x, "sizes of the curves, ascending, in the rows' names; empty: without level", not_empty,
    above(0.0));
  f("numerator", c.numerator, "row of the numerator, or a curve (rows are named by curve and size)",
    required, not_empty, renamed_from("over"));
  f("denominator", c.denominator, "row of the denominator, or a curve, like numerator", required,
    not_empty, renamed_from("under"));
}
ConfigProblem config_problem(const RatioConfig& config);

/// Returns the name of the row of size `x` of a curve.
std::string row_of_size(const std::string& curve, double x);

/// Returns the x at which a curve first reaches `level`, between two sizes linear in log x; nothing
/// where it never does or where it is there at its first size already.
std::optional<double> crossing(const std::vector<double>& x, const std::vector<double>& y,
                               double level);

/// Returns the ratio of the rows' or curves' means, or nothing, with a warning, where one has no
/// crossing. Over runs that share seeds its standard deviation is that of the jackknife's
/// pseudo-values n R - (n - 1) R_i, R_i without seed i, by which its interval is that of a mean.
std::optional<ResultRow> ratio_row(const RatioConfig& config, const std::vector<ResultRow>& rows);

}  // namespace moesaic
