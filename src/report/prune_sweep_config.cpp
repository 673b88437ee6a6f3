// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "moesaic/base/nearest.h"
#include "moesaic/prune/criteria.h"
#include "moesaic/report/prune_sweep.h"
#include "moesaic/report/sweep_report.h"

namespace moesaic {
namespace {

template <class T>
bool contains(const std::vector<T>& list, const T& item) {
  return std::find(list.begin(), list.end(), item) != list.end();
}

/// Whether a sweep that keeps other numbers or compares other criteria has this row.
bool is_row_of_some_sweep(const std::string& name) {
  const size_t slash = name.find('/');
  return name.starts_with("keep") && slash != std::string::npos &&
         contains(criterion_names(), name.substr(slash + 1));
}

/// Returns the rows that the paper's values may be of: those that were left out may stay there.
std::vector<std::string> row_names(const PruneSweepConfig& config) {
  std::vector<std::string> names;
  for (const PhaseConfig& phase : config.train.phases) names.push_back(phase.name);
  for (const int64_t keep : config.keep) {
    for (const std::string& criterion : config.criteria)
      names.push_back(sweep_row(keep, criterion));
  }
  for (const auto& [row, unused] : config.paper) {
    if (is_row_of_some_sweep(row)) names.push_back(row);
  }
  return names;
}

}  // namespace

ConfigProblem config_problem(const PruneSweepConfig& config) {
  const std::vector<PhaseConfig>& phases = config.train.phases;
  if (phases.size() < 2 && config.train.init.empty()) {
    return {"train.phases must pre-train and fine-tune: one phase needs train.init",
            {"train.phases"}};
  }
  if (config.recover.data != phases.back().data) {
    return {fmt::format("recover.data is '{}', but the last phase of train was on '{}'",
                        config.recover.data, phases.back().data),
            {"recover.data", fmt::format("train.phases.{}.data", phases.size() - 1)}};
  }
  const std::vector<std::string> known = criterion_names();
  for (size_t i = 0; i < config.criteria.size(); ++i) {
    const std::string& criterion = config.criteria[i];
    if (!contains(known, criterion)) {
      return {fmt::format("criteria has no '{}'; {}", criterion, did_you_mean(criterion, known)),
              {fmt::format("criteria.{}", i)}};
    }
  }
  if (std::set(config.keep.begin(), config.keep.end()).size() != config.keep.size()) {
    return {"keep names a number twice", {"keep"}};
  }
  if (std::set(config.criteria.begin(), config.criteria.end()).size() != config.criteria.size()) {
    return {"criteria names one twice", {"criteria"}};
  }
  if (config.exported && (!contains(config.keep, config.exported->keep) ||
                          !contains(config.criteria, config.exported->criterion))) {
    return {fmt::format("export is keep {} by '{}', which is not part of the sweep",
                        config.exported->keep, config.exported->criterion),
            {"export.keep", "export.criterion", "keep", "criteria"}};
  }
  if (ConfigProblem problem = paper_problem(config.paper, row_names(config)); !problem.empty()) {
    return problem;
  }
  for (const auto& [row, metrics] : config.paper) {
    for (const auto& [metric, unused] : metrics) {
      const std::vector<std::string>& measured = sweep_metrics(row.starts_with("keep"));
      if (contains(measured, metric)) continue;
      return {
          fmt::format("'{}' has no metric '{}'; {}", row, metric, did_you_mean(metric, measured)),
          {"paper." + row, "paper"}};
    }
  }
  return {};
}

}  // namespace moesaic
