// SPDX-License-Identifier: Apache-2.0
#include "moesaic/report/ratio.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "moesaic/base/log.h"

namespace moesaic {

namespace {

const ResultRow* find_row(const std::vector<ResultRow>& rows, const std::string& name,
                          const std::string& metric) {
  const auto found = std::find_if(rows.begin(), rows.end(), [&](const ResultRow& row) {
    return row.name == name && row.metric == metric;
  });
  return found == rows.end() ? nullptr : &*found;
}

/// Returns what a side of the ratio is, or nothing.
std::optional<double> side_of(const RatioConfig& config, const std::string& side,
                              const std::vector<ResultRow>& rows, int64_t& runs) {
  std::vector<double> y;
  for (const double x : config.reaches ? config.x : std::vector<double>{0.0}) {
    const ResultRow* found =
        find_row(rows, config.reaches ? row_of_size(side, x) : side, config.of);
    if (found == nullptr) break;
    y.push_back(found->measured);
    runs = found->runs;
  }
  if (config.reaches) return crossing(config.x, y, *config.reaches);
  return y.empty() ? std::nullopt : std::optional(y.front());
}

}  // namespace

ConfigProblem config_problem(const RatioConfig& config) {
  if (config.reaches.has_value() == config.x.empty()) {
    return {"a ratio of curves has a level and sizes, a ratio of rows neither", {"reaches", "x"}};
  }
  if (std::adjacent_find(config.x.begin(), config.x.end(), std::greater_equal<>()) ==
      config.x.end()) {
    return {};
  }
  return {"the sizes of a ratio's curves ascend", {"x"}};
}

std::string row_of_size(const std::string& curve, double x) {
  return fmt::format("{}{}", curve, x);
}

std::optional<double> crossing(const std::vector<double>& x, const std::vector<double>& y,
                               double level) {
  for (size_t i = 0; i < std::min(x.size(), y.size()); ++i) {
    if (y[i] < level) continue;
    if (i == 0) return std::nullopt;
    const double part = (level - y[i - 1]) / (y[i] - y[i - 1]);
    return x[i - 1] * std::pow(x[i] / x[i - 1], part);
  }
  return std::nullopt;
}

std::optional<ResultRow> ratio_row(const RatioConfig& config, const std::vector<ResultRow>& rows) {
  ResultRow made{config.name, config.metric};
  double at[2] = {};
  for (const size_t side : {0U, 1U}) {
    const std::string& name = side == 0 ? config.over : config.under;
    const std::optional<double> value = side_of(config, name, rows, made.runs);
    if (!value) {
      const std::string what =
          config.reaches
              ? fmt::format("the rows '{}...' do not cross {} {}", name, config.of, *config.reaches)
              : fmt::format("the row '{}' has no {}", name, config.of);
      log_warning("{}: {}: no {}", config.name, what, config.metric);
      return std::nullopt;
    }
    at[side] = *value;
  }
  if (at[1] == 0.0) {
    log_warning("{}: the row '{}' has 0 for {}: no {}", config.name, config.under, config.of,
                config.metric);
    return std::nullopt;
  }
  made.measured = at[0] / at[1];
  return made;
}

}  // namespace moesaic
