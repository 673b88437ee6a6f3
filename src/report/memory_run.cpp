// SPDX-License-Identifier: Apache-2.0
#include "memory_run.h"

#include <algorithm>
#include <utility>

#include "moesaic/base/error.h"
#include "moesaic/config/document.h"
#include "moesaic/train/phase.h"

namespace moesaic {

RunConfig changed_run(const Value& train, const Value& set, int64_t max_steps) {
  Document document(train);
  if (set.is_object()) {
    for (const Value::Member& setting : set.members("set")) {
      document.set(setting.key + "=" + setting.value.to_json().dump());
    }
  }
  RunConfig config = parse<RunConfig>(document.root());
  for (PhaseConfig& phase : config.phases) {
    if (max_steps == 0) continue;
    phase.epochs.reset();
    phase.steps = std::min(phase.steps.value_or(max_steps), max_steps);
  }
  return config;
}

MemoryRun plan_memory_run(RunConfig config, Datasets& datasets) {
  MemoryRun run{std::move(config), {}, {}, {}};
  for (const PhaseConfig& phase : run.config.phases) {
    if (phase.on_entry.prune || phase.on_entry.new_head) {
      fail_usage("{}: the runs of such an experiment have no on_entry",
                 place_of(phase.source, {"on_entry"}));
    }
  }
  run.phases = plan_phases(run.config, *build_initial_shape(run.config), datasets);
  for (const PhasePlan& phase : run.phases) {
    run.train.push_back(datasets.get(phase.config.data, "train", phase.config.preprocess));
  }
  const PhaseConfig& last = run.phases.back().config;
  run.test = datasets.get(last.data, "test", last.preprocess);
  return run;
}

std::optional<TrainedRun> train_in_memory(
    const MemoryRun& run, int64_t index,
    const std::function<bool(Model& model, int64_t steps)>& watch) {
  RunConfig config = run.config;
  config.seed += index;
  TrainedRun trained{build_initial_model(config), 0};
  load_initial_weights(config, *trained.model);
  for (size_t i = 0; i < run.phases.size(); ++i) {
    Phase phase(run.phases[i], trained.model, run.train[i],
                phase_seed(config.seed, static_cast<int64_t>(i)), /*loader_threads=*/0, {});
    while (!phase.done()) {
      if (!watch(*trained.model, trained.steps)) return std::nullopt;
      if (!phase.step().ends) ++trained.steps;
    }
  }
  return trained;
}

EvaluateOptions evaluate_options(const RunConfig& config) {
  return {.batch_size = config.evaluate_batch_size,
          .loader_threads = 0,
          .proceed = {},
          .loss = config.phases.back().loss,
          .precision = config.precision};
}

}  // namespace moesaic
