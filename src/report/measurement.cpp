// SPDX-License-Identifier: Apache-2.0
#include "moesaic/report/measurement.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "moesaic/base/error.h"

namespace moesaic {

ConfigProblem config_problem(const MeasuredTable& table) {
  const bool sound = table.values.size() == table.rows.size() &&
                     std::all_of(table.values.begin(), table.values.end(), [&](const auto& row) {
                       return row.size() == table.columns.size();
                     });
  if (sound) return {};
  return {
      fmt::format("values must be {} lists of {} numbers", table.rows.size(), table.columns.size()),
      {"values"}};
}

std::string name_of_first_run(const MeasuredRow& row) {
  if (row.runs.size() == 1) return row.name;
  return fmt::format("{} (run 1 of {})", row.name, row.runs.size());
}

const Metric* find_metric(const std::vector<Metric>& metrics, const std::string& name) {
  for (const Metric& metric : metrics) {
    if (metric.name == name) return &metric;
  }
  return nullptr;
}

const Metric& metric_of(const std::vector<MeasuredRow>& rows, const std::string& name) {
  for (const MeasuredRow& row : rows) {
    if (const Metric* found = find_metric(row.metrics, name)) return *found;
  }
  fail_usage("no row has the metric '{}'", name);
}

Moments moments(const std::vector<double>& values) {
  Moments result{.n = static_cast<int64_t>(values.size())};
  double sum = 0.0, squares = 0.0;
  for (const double value : values) sum += value;
  result.mean = sum / static_cast<double>(values.size());
  for (const double value : values) squares += (value - result.mean) * (value - result.mean);
  result.std = std::sqrt(squares / static_cast<double>(values.size()));
  return result;
}

}  // namespace moesaic
