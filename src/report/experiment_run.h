// SPDX-License-Identifier: Apache-2.0
// A run of an experiment: planned once for all its seeds, made in memory.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "moesaic/report/probe.h"
#include "moesaic/report/runs.h"
#include "moesaic/train/datasets.h"
#include "moesaic/train/run_config.h"

namespace moesaic {

/// The row's run, in which no phase makes more than the experiment's `max_steps` updates. Throws as
/// parse() does.
RunConfig config_of(const RunsConfig& experiment, const PlannedRow& row);

struct ExperimentRun {
  RunConfig config;
  std::shared_ptr<const Dataset> train, test;  ///< Data of the last phase, preprocessed.
  std::vector<const Probe*> probes;            ///< All applicable probes, for its end.
  std::vector<const Probe*> snapshot_probes;   ///< Probes of snapshots.
  std::vector<Metric> metrics;                 ///< Metrics of all probes.
  std::vector<Metric> snapshot_metrics;
};

/// Throws Error (usage) for settings that do not fit each other, for unknown probes, and for phases
/// that prune.
ExperimentRun plan_run(RunConfig config, const RunsConfig& experiment, Datasets& datasets);

/// Trains it with the seed config.seed + `index` and measures it: a function of these alone.
/// Nothing where `going` ended it.
std::optional<RunRecord> make_run(const ExperimentRun& run, int64_t index, int64_t every,
                                  Datasets& datasets, const std::function<bool()>& going);

}  // namespace moesaic
