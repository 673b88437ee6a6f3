// SPDX-License-Identifier: Apache-2.0
#include "moesaic/report/ratio.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "moesaic/base/log.h"

namespace moesaic {

ConfigProblem config_problem(const RatioConfig& config) {
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
    const std::string& curve = side == 0 ? config.over : config.under;
    std::vector<double> y;
    for (const double x : config.x) {
      const auto found = std::find_if(rows.begin(), rows.end(), [&](const ResultRow& row) {
        return row.name == row_of_size(curve, x) && row.metric == config.of;
      });
      if (found == rows.end()) break;
      y.push_back(found->measured);
      made.runs = found->runs;
    }
    const std::optional<double> reached = crossing(config.x, y, config.reaches);
    if (!reached) {
      log_warning("{}: the rows '{}...' do not cross {} {}: no {}", config.name, curve, config.of,
                  config.reaches, config.metric);
      return std::nullopt;
    }
    at[side] = *reached;
  }
  made.measured = at[0] / at[1];
  return made;
}

}  // namespace moesaic
