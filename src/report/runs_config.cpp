// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <tuple>

#include "moesaic/base/error.h"
#include "moesaic/base/nearest.h"
#include "moesaic/base/text.h"
#include "moesaic/report/runs.h"
#include "sweep_runs.h"

namespace moesaic {
namespace {

constexpr size_t kMaxRows = 10000;

size_t grid_rows(const RunsConfig& config) {
  if (config.grid.empty()) return 0;
  size_t count = 1;
  for (const auto& axis : config.grid) count = std::min(count * axis.size(), kMaxRows + 1);
  return count;
}

PlannedRow with_point(PlannedRow row, const RowConfig& point, const std::string& separator) {
  row.name += (row.name.empty() ? "" : separator) + point.name;
  if (!point.set.is_null()) row.sets.push_back(point.set);
  row.runs = point.runs.value_or(row.runs);
  row.earlier.insert(point.earlier.begin(), point.earlier.end());
  return row;
}

std::vector<PlannedRow> product(const RunsConfig& config, const PlannedRow& empty) {
  if (config.grid.empty()) return {};
  std::vector<PlannedRow> rows = {empty};
  for (const auto& axis : config.grid) {
    std::vector<PlannedRow> finer;
    for (const PlannedRow& row : rows) {
      for (const RowConfig& point : axis) {
        finer.push_back(with_point(row, point, config.separator));
      }
    }
    rows = std::move(finer);
  }
  return rows;
}

/// Returns the first name that is in the list twice.
std::optional<std::string> repeated(const std::vector<std::string>& names) {
  std::set<std::string> unique;
  for (const std::string& name : names) {
    if (!unique.insert(name).second) return name;
  }
  return std::nullopt;
}

ConfigProblem row_problem(const std::vector<std::string>& rows, const std::string& row) {
  if (std::find(rows.begin(), rows.end(), row) != rows.end()) return {};
  return {fmt::format("there is no row '{}'; {}", row, did_you_mean(row, rows)),
          {"ratios", "plots"}};
}

/// Returns what is wrong with curves that have no row of some size.
ConfigProblem size_problem(const std::vector<std::string>& rows, const std::string& curve,
                           const std::vector<double>& sizes) {
  for (const double x : sizes) {
    ConfigProblem problem = row_problem(rows, row_of_size(curve, x));
    if (!problem.empty()) return problem;
  }
  return {};
}

std::vector<std::string> names_of_rows(const RunsConfig& config) {
  if (config.sweep.is_given()) return sweep_rows(config);
  std::vector<std::string> names;
  for (const PlannedRow& row : planned_rows(config)) {
    for (std::string& name : row.names()) names.push_back(std::move(name));
  }
  return names;
}

ConfigProblem grid_problem(const RunsConfig& config) {
  for (const char* key : {"whole", "by_layer", "criteria", "replace", "images", "finetuned",
                          "recover", "throughput", "export", "kept"}) {
    if (config.source.find(key) == nullptr) continue;
    return {fmt::format("'{}' is for networks that are pruned: give 'keep', too", key), {key}};
  }
  for (size_t i = 0; i < config.grid.size(); ++i) {
    if (config.grid[i].empty()) return {fmt::format("grid.{} has no points", i), {"grid"}};
  }
  if (grid_rows(config) > kMaxRows) {
    return {fmt::format("the grid has more than {} rows", kMaxRows), {"grid"}};
  }
  if (!config.rows.empty() || !config.grid.empty()) return {};
  return {"there is neither a grid nor a row, nor 'keep'", {"rows", "grid"}};
}

}  // namespace

ConfigProblem config_problem(const PlotConfig& config) {
  const bool of_sizes = config.kind == "lines" || config.kind == "map";
  if (of_sizes != !config.series.empty() || of_sizes != !config.x.empty()) {
    return {of_sizes ? fmt::format("a plot of kind '{}' needs series and x", config.kind)
                     : "series and x are for plots of kind 'lines' and 'map'",
            {"series", "x", "kind"}};
  }
  if (config.kind != "scatter" || config.metrics.size() == 2) return {};
  return {fmt::format("a scatter plot has two metrics, x and y, found {}", config.metrics.size()),
          {"metrics"}};
}

ConfigProblem config_problem(const FitConfig& config) {
  std::set<double> places;
  for (const auto& [row, x] : config.x) places.insert(x);
  if (places.size() > 1) return {};
  return {fmt::format("a fit needs rows at two values of x or more, found {}", places.size()),
          {"x"}};
}

ConfigProblem config_problem(const SnapshotConfig& config) {
  for (const auto& [what, setting, names] : {std::tuple("metric", "best", &config.best),
                                             std::tuple("metric", "converged", &config.converged),
                                             std::tuple("probe", "probes", &config.probes)}) {
    const auto name = repeated(*names);
    if (name) return {fmt::format("the {} '{}' is listed twice", what, *name), {setting}};
  }
  return {};
}

ConfigProblem config_problem(const RunsConfig& config) {
  ConfigProblem problem = config.sweep.is_given() ? sweep_problem(config) : grid_problem(config);
  if (!problem.empty()) return problem;
  std::vector<std::string> names = names_of_rows(config);
  for (const std::string& name : names) {
    if (one_line(name, name.size()) != name) {
      return {fmt::format("the row '{}' has a control character in its name", one_line(name)),
              {"rows", "grid"}};
    }
  }
  if (const auto name = repeated(names)) {
    return {fmt::format("two rows are called '{}'", *name),
            {"rows", "grid", "keep", "criteria", "by_layer"}};
  }
  if (const auto probe = repeated(config.probes)) {
    return {fmt::format("the probe '{}' is listed twice", *probe), {"probes"}};
  }
  for (const FitConfig& fit : config.fits) {
    for (const auto& [row, x] : fit.x) {
      if (std::find(names.begin(), names.end(), row) != names.end()) continue;
      return {fmt::format("fits: there is no row '{}'; {}", row, did_you_mean(row, names)),
              {"fits"}};
    }
  }
  for (const FitConfig& fit : config.fits) names.push_back(fit.name);
  for (const PlotConfig& plot : config.plots) {
    for (const std::string& curve : plot.series) {
      problem = size_problem(names, curve, plot.x);
      if (!problem.empty()) return problem;
    }
  }
  for (const RatioConfig& ratio : config.ratios) {
    for (const std::string& side : {ratio.over, ratio.under}) {
      problem = ratio.reaches ? size_problem(names, side, ratio.x) : row_problem(names, side);
      if (!problem.empty()) return problem;
    }
  }
  for (const RatioConfig& ratio : config.ratios) names.push_back(ratio.name);
  for (const auto& [row, unused] : config.paper) {  // What a sweep left out may stay there.
    if (config.sweep.is_given() && is_row_of_some_sweep(config, row)) names.push_back(row);
  }
  return paper_problem(config.paper, names);
}

std::vector<std::string> PlannedRow::names() const {
  std::set<std::string> unique;
  for (const auto& [phase, row] : earlier) unique.insert(row);
  std::vector<std::string> names(unique.begin(), unique.end());
  names.push_back(name);
  return names;
}

std::vector<PlannedRow> planned_rows(const RunsConfig& config) {
  PlannedRow empty{"", {}, config.runs};
  if (!config.set.is_null()) empty.sets.push_back(config.set);
  std::vector<PlannedRow> rows;
  for (const RowConfig& row : config.rows) {
    rows.push_back(with_point(empty, row, config.separator));
  }
  const std::vector<PlannedRow> grid = product(config, empty);
  rows.insert(rows.end(), grid.begin(), grid.end());
  return rows;
}

}  // namespace moesaic
