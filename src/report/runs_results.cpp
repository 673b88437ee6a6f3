// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <utility>

#include "moesaic/report/runs.h"

#include "moesaic/base/error.h"

namespace moesaic {
namespace {

/// Returns the slope of the least-squares line through the logarithms.
double exponent_of(const std::vector<std::pair<double, double>>& points) {
  double n = 0.0, x = 0.0, y = 0.0, xx = 0.0, xy = 0.0;
  for (const auto& [at, value] : points) {
    const double a = std::log(at), b = std::log(value);
    n += 1.0;
    x += a;
    y += b;
    xx += a * a;
    xy += a * b;
  }
  return (n * xy - x * y) / (n * xx - x * x);
}

ResultRow fitted(const FitConfig& fit, const std::vector<MeasuredRow>& rows) {
  size_t runs = SIZE_MAX;
  std::vector<std::pair<double, const MeasuredRow*>> used;
  for (const MeasuredRow& row : rows) {
    const auto found = fit.x.find(row.name);
    if (found == fit.x.end()) continue;
    used.emplace_back(found->second, &row);
    runs = std::min(runs, row.runs.size());
  }
  std::vector<double> exponents;
  for (size_t i = 0; i < runs; ++i) {
    std::vector<std::pair<double, double>> points;
    for (const auto& [x, row] : used) {
      const auto& numbers = row->runs[i].final.numbers;
      const auto value = numbers.find(fit.metric);
      if (value == numbers.end() || !(value->second > 0.0)) {
        fail("fit '{}': '{}' has no {} above 0", fit.name, row->name, fit.metric);
      }
      points.emplace_back(x, value->second);
    }
    exponents.push_back(exponent_of(points));
  }
  return row_of_runs(fit.name, fit.exponent(), std::move(exponents));
}

}  // namespace

std::vector<ResultRow> runs_results(const RunsConfig& config,
                                    const std::vector<MeasuredRow>& rows) {
  std::vector<ResultRow> results;
  for (const MeasuredRow& row : rows) {
    for (const Metric& metric : row.metrics) {
      std::vector<double> values;
      for (const RunRecord& run : row.runs) {
        const auto found = run.final.numbers.find(metric.name);
        if (found != run.final.numbers.end()) values.push_back(found->second);
      }
      if (metric.is_table || values.empty()) continue;
      ResultRow result = row_of_runs(row.name, metric.name, std::move(values));
      result.digits = metric.digits;
      results.push_back(std::move(result));
    }
  }
  for (const FitConfig& fit : config.fits) results.push_back(fitted(fit, rows));
  for (const RatioConfig& ratio : config.ratios) {
    std::optional<ResultRow> made = ratio_row(ratio, results);
    if (made) results.push_back(std::move(*made));
  }
  for (ResultRow& row : results) {
    const std::optional<PaperNumber> paper = paper_number(config.paper, row.name, row.metric);
    if (!paper) continue;
    row.paper = paper->value;
    row.paper_std = paper->std;
  }
  return results;
}

}  // namespace moesaic
