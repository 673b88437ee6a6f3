// SPDX-License-Identifier: Apache-2.0
// Results that are made of others: ratios and exponents of power laws, with jackknife errors.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "moesaic/base/error.h"
#include "moesaic/base/log.h"
#include "moesaic/report/runs.h"

namespace moesaic {
namespace {

using Estimate = std::function<std::optional<double>(const std::vector<ResultRow>&)>;

/// Returns the standard deviation of the jackknife's pseudo-values n R - (n - 1) R_i of an estimate
/// R, R_i being that without seed i; nothing unless these rows have several seeds and the same.
std::optional<double> jackknife_std(const std::vector<ResultRow>& rows, double whole,
                                    const Estimate& estimate) {
  if (rows.empty() || rows.front().values.size() < 2) return std::nullopt;
  const auto n = static_cast<double>(rows.front().values.size());
  std::vector<double> pseudo;
  for (const auto& [seed, unused] : rows.front().values) {
    std::vector<ResultRow> rest;
    for (const ResultRow& row : rows) {
      SeedValues values = row.values;
      if (values.erase(seed) == 0 || static_cast<double>(values.size()) != n - 1.0) return {};
      rest.push_back(row_of_runs(row.name, row.metric, std::move(values)));
    }
    const std::optional<double> without = estimate(rest);
    if (!without) return std::nullopt;
    pseudo.push_back(n * whole - (n - 1.0) * *without);
  }
  return moments(pseudo).std;
}

/// Returns the estimate's row, with how it varies with the runs of the rows that it is made of:
/// those of a metric with these names.
ResultRow estimated_row(const std::string& name, const std::string& metric,
                        const std::vector<ResultRow>& rows, const std::string& source_metric,
                        const std::set<std::string>& names, const Estimate& estimate) {
  std::vector<ResultRow> used = rows;
  std::erase_if(used, [&](const ResultRow& row) {
    return row.metric != source_metric || !names.contains(row.name);
  });
  ResultRow made{.name = name, .metric = metric, .measured = *estimate(rows)};
  if (!used.empty()) made.num_runs = used.back().num_runs;
  made.std = jackknife_std(used, made.measured, estimate);
  return made;
}

/// Returns the size at which a curve's means reach a level.
std::optional<double> size_at(const std::string& curve, const std::vector<double>& sizes,
                              const std::string& metric, double level,
                              const std::vector<ResultRow>& rows) {
  std::vector<double> y;
  for (const double x : sizes) {
    const ResultRow* const found = find_result(rows, row_of_size(curve, x), metric);
    if (found == nullptr) break;
    y.push_back(found->measured);
  }
  return crossing(sizes, y, level);
}

/// Returns what a side of the ratio is, or nothing.
std::optional<double> side_of(const RatioConfig& config, const std::string& side,
                              const std::vector<ResultRow>& rows) {
  if (config.level) return size_at(side, config.x, config.source_metric, *config.level, rows);
  const ResultRow* const found = find_result(rows, side, config.source_metric);
  return found == nullptr ? std::nullopt : std::optional(found->measured);
}

/// Returns what is wrong with the level and the sizes of a ratio or a fit of curves.
ConfigProblem curves_problem(const char* what, const char* setting,
                             const std::optional<double>& level, const std::vector<double>& sizes) {
  if (level.has_value() == sizes.empty()) {
    return {
        fmt::format("'level' and '{1}' belong together: a {0} of curves needs both, a {0} of rows "
                    "neither",
                    what, setting),
        {"level", setting}};
  }
  if (std::ranges::adjacent_find(sizes, std::greater_equal<>()) == sizes.end()) return {};
  return {fmt::format("the sizes of a {}'s curves ascend", what), {setting}};
}

/// Returns the slope of the least-squares line through the logarithms.
double exponent_of(const std::vector<FitPoint>& points) {
  double n = 0.0, x = 0.0, y = 0.0, xx = 0.0, xy = 0.0;
  for (const FitPoint& point : points) {
    const double a = std::log(point.x), b = std::log(point.y);
    n += 1.0;
    x += a;
    y += b;
    xx += a * a;
    xy += a * b;
  }
  return (n * xy - x * y) / (n * xx - x * x);
}

ResultRow fit_of_rows(const FitConfig& fit, const std::vector<MeasuredRow>& rows) {
  size_t runs = SIZE_MAX;
  std::vector<std::pair<double, const MeasuredRow*>> used;
  for (const MeasuredRow& row : rows) {
    const auto found = fit.x.find(row.name);
    if (found == fit.x.end()) continue;
    used.emplace_back(found->second, &row);
    runs = std::min(runs, row.runs.size());
  }
  SeedValues exponents;
  for (size_t i = 0; i < runs; ++i) {
    std::vector<FitPoint> points;
    for (const auto& [x, row] : used) {
      const auto& numbers = row->runs[i].final.numbers;
      const auto value = numbers.find(fit.metric);
      if (value == numbers.end() || !(value->second > 0.0)) {
        fail("fit '{}': '{}' has no {} above 0", fit.name, row->name, fit.metric);
      }
      points.push_back({x, value->second});
    }
    exponents[used.front().second->first_seed + static_cast<int64_t>(i)] = exponent_of(points);
  }
  ResultRow result = row_of_runs(fit.name, fit.exponent(), std::move(exponents));
  const auto same_seeds = [&](const auto& point) {
    return point.second->first_seed == used.front().second->first_seed;
  };
  if (!std::ranges::all_of(used, same_seeds)) result.values.clear();  // They have no one seed.
  return result;
}

}  // namespace

ConfigProblem config_problem(const RatioConfig& config) {
  return curves_problem("ratio", "x", config.level, config.x);
}

ConfigProblem config_problem(const FitConfig& config) {
  ConfigProblem problem = curves_problem("fit", "sizes", config.level, config.sizes);
  if (!problem.empty()) return problem;
  std::set<double> places;
  for (const auto& [row, x] : config.x) places.insert(x);
  if (places.size() > 1) return {};
  return {fmt::format("a fit needs rows at two values of x or more, found {}", places.size()),
          {"x"}};
}

std::string row_of_size(const std::string& curve, double x) {
  return fmt::format("{}{}", curve, x);
}

std::optional<double> crossing(const std::vector<double>& x, const std::vector<double>& y,
                               double level) {
  for (size_t i = 0; i < std::min(x.size(), y.size()); ++i) {
    if (!(y[i] >= level)) continue;  // A mean that is not a number is no crossing.
    if (i == 0 || std::isnan(y[i - 1])) return std::nullopt;
    const double part = (level - y[i - 1]) / (y[i] - y[i - 1]);
    return x[i - 1] * std::pow(x[i] / x[i - 1], part);
  }
  return std::nullopt;
}

std::optional<ResultRow> ratio_row(const RatioConfig& config, const std::vector<ResultRow>& rows) {
  std::set<std::string> names;
  for (const std::string& side : {config.numerator, config.denominator}) {
    for (const double x : config.x) names.insert(row_of_size(side, x));
    if (!config.level) names.insert(side);
    if (side_of(config, side, rows)) continue;
    const std::string what =
        config.level ? fmt::format("the rows '{}...' do not cross {} {}", side,
                                   config.source_metric, *config.level)
                     : fmt::format("the row '{}' has no {}", side, config.source_metric);
    log_warning("{}: {}: no {}", config.name, what, config.metric);
    return std::nullopt;
  }
  const Estimate estimate = [&](const std::vector<ResultRow>& from) -> std::optional<double> {
    const std::optional<double> top = side_of(config, config.numerator, from);
    const std::optional<double> bottom = side_of(config, config.denominator, from);
    if (!top || !bottom || *bottom == 0.0) return std::nullopt;
    return *top / *bottom;
  };
  if (!estimate(rows)) {
    log_warning("{}: the row '{}' has 0 for {}: no {}", config.name, config.denominator,
                config.source_metric, config.metric);
    return std::nullopt;
  }
  return estimated_row(config.name, config.metric, rows, config.source_metric, names, estimate);
}

std::vector<FitPoint> fit_points(const FitConfig& fit, const std::vector<ResultRow>& results) {
  std::vector<FitPoint> points;
  if (!fit.level) {
    for (const ResultRow& row : results) {
      const auto at = fit.x.find(row.name);
      if (row.metric != fit.metric || at == fit.x.end()) continue;
      points.push_back({at->second, row.measured, row.std.value_or(0.0)});
    }
    return points;
  }
  for (const auto& [curve, x] : fit.x) {
    const auto size = size_at(curve, fit.sizes, fit.metric, *fit.level, results);
    if (size) points.push_back({x, *size});
  }
  return points;
}

std::optional<ResultRow> fit_row(const FitConfig& fit, const std::vector<MeasuredRow>& rows,
                                 const std::vector<ResultRow>& results) {
  if (!fit.level) return fit_of_rows(fit, rows);
  std::set<std::string> names;
  for (const auto& [curve, x] : fit.x) {
    for (const double size : fit.sizes) names.insert(row_of_size(curve, size));
    if (size_at(curve, fit.sizes, fit.metric, *fit.level, results)) continue;
    log_warning("{}: the rows '{}...' do not cross {} {}: no {}", fit.name, curve, fit.metric,
                *fit.level, fit.exponent());
    return std::nullopt;
  }
  const Estimate estimate = [&](const std::vector<ResultRow>& from) -> std::optional<double> {
    const std::vector<FitPoint> points = fit_points(fit, from);
    if (points.size() < fit.x.size()) return std::nullopt;
    return exponent_of(points);
  };
  return estimated_row(fit.name, fit.exponent(), results, fit.metric, names, estimate);
}

}  // namespace moesaic
