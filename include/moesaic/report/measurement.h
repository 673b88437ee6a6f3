// SPDX-License-Identifier: Apache-2.0
// Measurements of a run: numbers and small tables by the name of a metric, at its end and in
// snapshots of its training dynamics.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "moesaic/config/schema.h"

namespace moesaic {

/// Presentation of a metric.
struct Metric {
  std::string name;
  std::string label;      ///< Label with unit, e.g. "test accuracy, %".
  int digits = 2;         ///< Digits after the decimal point.
  bool is_table = false;  ///< Whether it is a table rather than a number.
  bool optional = false;  ///< Whether a run may have none, where there is nothing to measure.
};

/// A table of numbers with named rows and columns, e.g. examples by cluster and expert.
struct MeasuredTable {
  std::vector<std::string> rows, columns;
  std::vector<std::vector<double>> values;  ///< Indexed by [row][column].
};
template <class Fields>
void describe(Fields& f, MeasuredTable& c) {
  f("rows", c.rows, "names of the rows", required, not_empty);
  f("columns", c.columns, "names of the columns", required, not_empty);
  f("values", c.values, "a list for each row, with a number for each column", required, not_empty);
}
ConfigProblem config_problem(const MeasuredTable& table);

struct Measurement {
  int64_t step = 0;  ///< Number of updates made before.
  std::map<std::string, double> numbers;
  std::map<std::string, MeasuredTable> tables;
};
template <class Fields>
void describe(Fields& f, Measurement& c) {
  f("step", c.step, "updates made before", required, at_least(0));
  f("numbers", c.numbers, "by metric");
  f("tables", c.tables, "by metric");
}

struct RunRecord {
  Measurement final;                   ///< Measurement after the last step.
  std::vector<Measurement> snapshots;  ///< By step, the last one at the end; empty without probes.
};
template <class Fields>
void describe(Fields& f, RunRecord& c) {
  f("final", c.final, "what the run came to", required);
  f("snapshots", c.snapshots, "measured while it trained");
}

/// The runs of one row of an experiment, by seed.
struct MeasuredRow {
  std::string name;
  std::vector<Metric> metrics;  ///< Metrics of all its probes.
  std::vector<RunRecord> runs;
  int64_t earlier_phases = 0;  ///< Number of updates before the last phase.
};

/// Returns the name of a row of which the first run alone is shown, and says so where it has
/// others: "row (run 1 of 3)".
std::string name_of_first_run(const MeasuredRow& row);

/// Returns the metric of this name, or nullptr.
const Metric* find_metric(const std::vector<Metric>& metrics, const std::string& name);
/// Returns the metric from the first row that has it. Throws Error (usage) if none has.
const Metric& metric_of(const std::vector<MeasuredRow>& rows, const std::string& name);

struct Moments {
  double mean = 0.0, std = 0.0;  ///< Population std (divided by n), as papers print it.
  int64_t n = 0;
};
/// Returns mean and standard deviation of at least one value.
Moments moments(const std::vector<double>& values);

}  // namespace moesaic
