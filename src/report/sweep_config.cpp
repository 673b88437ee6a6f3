// SPDX-License-Identifier: Apache-2.0
#include "moesaic/report/sweep.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <set>

#include "moesaic/base/nearest.h"
#include "moesaic/base/path.h"
#include "moesaic/base/text.h"
#include "moesaic/prune/criteria.h"
#include "sweep_runs.h"

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

std::vector<std::string> size_names(const SweepConfig& config) {
  std::vector<std::string> names;
  for (const int64_t keep : config.keep) names.push_back(sweep_size(keep));
  for (const LayerChoice& choice : config.by_layer) names.push_back(choice.name);
  return names;
}

/// Returns the rows that the paper's values may be of. A sweep that keeps other numbers, compares
/// other criteria or, where the command line gives its own, makes other choices by layer has the
/// others: what was left out may stay there.
std::vector<std::string> row_names(const RunsConfig& config, const RunConfig& train) {
  std::vector<std::string> names;
  for (const PhaseConfig& phase : train.phases) names.push_back(phase.name);
  const std::vector<std::string> sizes = size_names(config.sweep);
  for (const std::string& size : sizes) {
    for (const std::string& criterion : config.sweep.criteria)
      names.push_back(sweep_row(size, criterion));
  }
  for (const auto& [row, unused] : config.paper) {
    const size_t slash = std::min(row.find('/'), row.size() - 1);
    const std::string size = row.substr(0, slash);
    if (contains(criterion_names(), row.substr(slash + 1)) &&
        (is_count(size) || contains(sizes, size) || is_argument(config.source, "by_layer"))) {
      names.push_back(row);
    }
  }
  return names;
}

/// Returns what is wrong with the metrics that the paper's values are of.
ConfigProblem metric_problem(const PaperValues& paper) {
  for (const auto& [row, metrics] : paper) {
    std::vector<std::string> measured;
    for (const Metric& metric : sweep_metrics(row.find('/') != std::string::npos)) {
      measured.push_back(metric.name);
    }
    for (const auto& [metric, unused] : metrics) {
      if (contains(measured, metric)) continue;
      return {
          fmt::format("'{}' has no metric '{}'; {}", row, metric, did_you_mean(metric, measured)),
          {"paper." + row, "paper"}};
    }
  }
  return {};
}

/// Returns what is wrong with the sizes of networks.
ConfigProblem sizes_problem(const SweepConfig& config) {
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

ConfigProblem criteria_problem(const std::vector<std::string>& criteria) {
  if (criteria.empty()) return {"'keep' needs 'criteria', which rank the experts", {"keep"}};
  const std::vector<std::string> known = criterion_names();
  for (size_t i = 0; i < criteria.size(); ++i) {
    if (contains(known, criteria[i])) continue;
    return {fmt::format("criteria has no '{}'; {}", criteria[i], did_you_mean(criteria[i], known)),
            {fmt::format("criteria.{}", i)}};
  }
  if (std::set(criteria.begin(), criteria.end()).size() == criteria.size()) return {};
  return {"criteria names one twice", {"criteria"}};
}

/// Returns what is wrong with the phases before and after pruning.
ConfigProblem phases_problem(const SweepConfig& config, const RunConfig& train) {
  if (train.phases.size() < 2 && train.init.empty()) {
    return {"train.phases must pre-train and fine-tune: one phase needs train.init",
            {"train.phases"}};
  }
  if (!config.finetuned.empty() && train.init.empty()) {
    return {"finetuned takes the place of train's phases: it needs train.init to compare with",
            {"finetuned"}};
  }
  if (!config.recover) return {"'keep' needs 'recover', the phase that follows pruning", {"keep"}};
  if (config.recover->data == train.phases.back().data) return {};
  return {fmt::format("recover.data is '{}', but the last phase of train was on '{}'",
                      config.recover->data, train.phases.back().data),
          {"recover.data", fmt::format("train.phases.{}.data", train.phases.size() - 1)}};
}

ConfigProblem export_problem(const SweepConfig& config) {
  if (!config.exported || (contains(config.keep, config.exported->keep) &&
                           contains(config.criteria, config.exported->criterion))) {
    return {};
  }
  return {fmt::format("export is keep {} by '{}', which is not part of the sweep",
                      config.exported->keep, config.exported->criterion),
          {"export.keep", "export.criterion", "keep", "criteria"}};
}

}  // namespace

RunConfig sweep_train(const RunsConfig& config) {
  RunConfig train = parse<RunConfig>(config.train, "train");
  // The phases before the last were those of whoever made the checkpoint.
  if (!config.sweep.finetuned.empty()) {
    train.phases.erase(train.phases.begin(), train.phases.end() - 1);
  }
  return train;
}

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

ConfigProblem sweep_problem(const RunsConfig& config) {
  for (const char* key : {"rows", "grid", "separator", "set", "max_steps", "probes", "after",
                          "snapshots", "plots", "fits", "ratios"}) {
    if (config.source.find(key) == nullptr) continue;
    return {fmt::format("'keep' makes the rows, which '{}' does not go with", key), {key}};
  }
  const auto train = parse<RunConfig>(config.train, "train");
  for (const ConfigProblem& problem :
       {phases_problem(config.sweep, train), criteria_problem(config.sweep.criteria),
        sizes_problem(config.sweep), export_problem(config.sweep),
        paper_problem(config.paper, row_names(config, train)), metric_problem(config.paper)}) {
    if (!problem.empty()) return problem;
  }
  return {};
}

std::string sweep_row(const std::string& size, const std::string& criterion) {
  return size + "/" + criterion;
}

const std::vector<Metric>& sweep_metrics(bool of_network) {
  // Those that are optional are of the first run alone, or follow from all rows.
  const auto later = [](const char* name, const char* label) {
    return Metric{.name = name, .label = label, .optional = true};
  };
  static const std::vector<Metric> of_networks = {
      {"accuracy", "test accuracy, %"},
      later("accuracy_lost", "test accuracy lost, points"),
      {"accuracy_recovered", "test accuracy after recovery, %"},
      later("accuracy_lost_recovered", "test accuracy lost after recovery, points"),
      later("parameters", "parameters"),
      {"flops", "FLOPs an image"},
      later("images_per_second", "images a second"),
      later("bytes", "bytes of weights"),
      later("parameters_pruned", "parameters pruned, %"),
      later("flops_saved", "FLOPs saved, %"),
      later("time_saved", "forward time saved, %")};
  static const std::vector<Metric> of_phases = {{"test_accuracy", "test accuracy, %"}};
  return of_network ? of_networks : of_phases;
}

}  // namespace moesaic
