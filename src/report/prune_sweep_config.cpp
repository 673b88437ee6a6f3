// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <set>

#include "moesaic/base/nearest.h"
#include "moesaic/base/path.h"
#include "moesaic/base/text.h"
#include "moesaic/prune/criteria.h"
#include "moesaic/report/prune_sweep.h"
#include "moesaic/report/sweep_report.h"

namespace moesaic {
namespace {

template <class T>
bool contains(const std::vector<T>& list, const T& item) {
  return std::find(list.begin(), list.end(), item) != list.end();
}

/// Whether the name is that of a number of experts, "keep4".
bool is_count(const std::string& name) {
  constexpr std::string_view kKeep = "keep";
  return name.starts_with(kKeep) && name.size() > kKeep.size() &&
         std::isdigit(static_cast<unsigned char>(name[kKeep.size()])) != 0;
}

std::vector<std::string> size_names(const PruneSweepConfig& config) {
  std::vector<std::string> names;
  for (const int64_t keep : config.keep) names.push_back(sweep_size(keep));
  for (const LayerChoice& choice : config.by_layer) names.push_back(choice.name);
  return names;
}

/// Whether a sweep that keeps other numbers, compares other criteria or, where the command line
/// gives its own, makes other choices by layer has this row.
bool is_row_of_some_sweep(const PruneSweepConfig& config, const std::string& row) {
  const size_t slash = row.find('/');
  if (slash == std::string::npos) return false;
  const std::string size = row.substr(0, slash);
  return contains(criterion_names(), row.substr(slash + 1)) &&
         (is_count(size) || contains(size_names(config), size) ||
          is_argument(config.source, "by_layer"));
}

/// Returns the rows that the paper's values may be of: those that were left out may stay there.
std::vector<std::string> row_names(const PruneSweepConfig& config) {
  std::vector<std::string> names;
  for (const PhaseConfig& phase : config.train.phases) names.push_back(phase.name);
  for (const std::string& size : size_names(config)) {
    for (const std::string& criterion : config.criteria)
      names.push_back(sweep_row(size, criterion));
  }
  for (const auto& [row, unused] : config.paper) {
    if (is_row_of_some_sweep(config, row)) names.push_back(row);
  }
  return names;
}

/// Returns what is wrong with the metrics that the paper's values are of.
ConfigProblem metric_problem(const PruneSweepConfig& config) {
  for (const auto& [row, metrics] : config.paper) {
    for (const auto& [metric, unused] : metrics) {
      const std::vector<std::string>& measured = sweep_metrics(row.find('/') != std::string::npos);
      if (contains(measured, metric)) continue;
      return {
          fmt::format("'{}' has no metric '{}'; {}", row, metric, did_you_mean(metric, measured)),
          {"paper." + row, "paper"}};
    }
  }
  return {};
}

/// Returns what is wrong with the sizes of networks.
ConfigProblem size_problem(const PruneSweepConfig& config) {
  if (std::set(config.keep.begin(), config.keep.end()).size() != config.keep.size()) {
    return {"keep names a number twice", {"keep"}};
  }
  std::set<std::string> names;
  for (const LayerChoice& choice : config.by_layer) {
    if (names.insert(choice.name).second) continue;
    return {fmt::format("by_layer has two choices called '{}'", choice.name), {"by_layer"}};
  }
  return {};
}

}  // namespace

std::string sweep_size(int64_t keep) {
  return fmt::format("keep{}", keep);
}

ConfigProblem config_problem(const LayerChoice& choice) {
  if (!is_plain_name(choice.name) || is_count(choice.name)) {
    return {fmt::format("the choice's name {} may hold letters, digits, '-', '_' and '.', and not "
                        "begin like that of a number of experts, keep4",
                        printable(choice.name)),
            {"name"}};
  }
  if (choice.keep.kind() == Value::Kind::string) {
    return {
        "'keep' of a choice by layer names no file, since it stands in the experiment's results",
        {"keep"}};
  }
  KeepSpec::from_value(choice.keep);
  return {};
}

ConfigProblem config_problem(const PruneSweepConfig& config) {
  const std::vector<PhaseConfig>& phases = config.train.phases;
  if (phases.size() < 2 && config.train.init.empty()) {
    return {"train.phases must pre-train and fine-tune: one phase needs train.init",
            {"train.phases"}};
  }
  if (!config.finetuned.empty() && config.train.init.empty()) {
    return {"finetuned takes the place of train's phases: it needs train.init to compare with",
            {"finetuned"}};
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
  if (ConfigProblem problem = size_problem(config); !problem.empty()) return problem;
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
  return metric_problem(config);
}

}  // namespace moesaic
