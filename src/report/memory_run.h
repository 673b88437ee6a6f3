// SPDX-License-Identifier: Apache-2.0
// Small runs that are made in memory, without a folder of their own.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "moesaic/train/datasets.h"
#include "moesaic/train/evaluate.h"
#include "moesaic/train/run_plan.h"

namespace moesaic {

/// `train` with the settings of `set`, {"dotted.key": value, ...} or nothing, in which no phase
/// makes more than `max_steps` updates (0: as it is configured). Throws as parse() does.
RunConfig changed_run(const Value& train, const Value& set, int64_t max_steps);

/// A run that is ready for any seed.
struct MemoryRun {
  RunConfig config;
  std::vector<PhasePlan> phases;
  std::vector<std::shared_ptr<const Dataset>> train;  ///< of each phase
  std::shared_ptr<const Dataset> test;                ///< of the last one
};

/// Throws Error (usage) as plan_phases() does, and for phases with an on_entry.
MemoryRun plan_memory_run(RunConfig config, Datasets& datasets);

struct TrainedRun {
  std::shared_ptr<Model> model;
  int64_t steps = 0;  ///< updates made
};

/// Trains it with the seed config.seed + `index`, a function of these alone. `watch` is called
/// before every step with the network and the updates that were made; where it says false, nothing
/// is returned.
std::optional<TrainedRun> train_in_memory(
    const MemoryRun& run, int64_t index,
    const std::function<bool(Model& model, int64_t steps)>& watch);

/// How a run is evaluated.
EvaluateOptions evaluate_options(const RunConfig& config);

}  // namespace moesaic
