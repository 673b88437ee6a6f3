// SPDX-License-Identifier: Apache-2.0
// The configuration of a run: model, data, phases.
#pragma once

#include "moesaic/config/difference.h"
#include "moesaic/parallel/launch.h"
#include "moesaic/train/phase_config.h"

namespace moesaic {

/// Settings of a run.
struct RunConfig {
  std::string name;
  int64_t seed = 1;
  std::string init;
  Value model;
  std::string precision = "float32";
  bool tf32 = false;
  bool activation_checkpointing = false;
  bool deterministic = false;
  int64_t num_loader_threads = 1;
  Interval log_every = Interval::from_steps(50);
  Interval checkpoint_every = Interval::from_steps(500);
  int64_t num_checkpoints = 2;
  Interval evaluate_every = Interval::from_epochs(1);
  int64_t evaluate_batch_size = 256;
  std::string best_metric;
  double starved_expert_share = 0.05;
  int64_t starved_expert_steps = 500;
  std::string data_changed = "refuse";
  ParallelConfig parallel;
  std::vector<PhaseConfig> phases;
  Value source;        ///< where it was written
  bool trust = false;  ///< see LoadOptions; no setting, since a recipe vouches for no file
};
void describe(auto& f, RunConfig& c) {
  f("name", c.name, "name of the run, and of its folder without --out", required, not_empty,
    common);
  f("seed", c.seed, "seed of all random number generators", at_least(0), common);
  f("init", c.init, "checkpoint or run to start from; empty: a new network", common,
    known_as({"pretrained", "initial_checkpoint"}));
  f("model", c.model, "network (moesaic list models); null: that of init", common);
  f("precision", c.precision,
    "dtype of matmuls, float32 or bfloat16; bfloat16 only where rounding does little harm: "
    "parameters, router, losses and optimizer stay float32",
    one_of({"float32", "bfloat16"}), common,
    known_as({"amp", "amp_dtype", "bf16", "dtype", "mixed_precision"}));
  f("tf32", c.tf32,
    "rounding to TF32 (10 bits of mantissa) of the inputs of float32 matmuls and convolutions on a "
    "GPU: several times faster");
  f("activation_checkpointing", c.activation_checkpointing,
    "activation checkpointing of each block: less memory, more time (only its input is kept, the "
    "rest is recomputed in backward)",
    renamed_from("recompute"), known_as({"grad_checkpointing", "gradient_checkpointing"}));
  f("deterministic", c.deterministic,
    "deterministic algorithms on a GPU, for bit-identical runs as on a CPU: slower, and "
    "CUBLAS_WORKSPACE_CONFIG=:4096:8 must be set in the environment");
  f("num_loader_threads", c.num_loader_threads,
    "number of threads that make batches; results are bit-identical for any number",
    between(0, 1024), renamed_from("loader_threads"),
    known_as({"num_workers", "workers", "dataloader_num_workers"}));
  f("log_every", c.log_every, "interval in steps between two lines of metrics",
    between(1, kMaxSteps), common);
  f("checkpoint_every", c.checkpoint_every,
    "interval in steps between checkpoints; 0: only at phase ends", between(0, kMaxSteps), common);
  f("num_checkpoints", c.num_checkpoints, "number of intermediate checkpoints kept", at_least(1),
    renamed_from("keep_checkpoints"));
  f("evaluate_every", c.evaluate_every,
    "interval between evaluations; 0: only at phase ends; a bare number is read as epochs, with a "
    "warning, as in earlier versions",
    between(0, kMaxSteps), common);
  f("evaluate_batch_size", c.evaluate_batch_size, "number of images per batch in evaluations",
    between(1, kMaxBatchSize));
  f("best_metric", c.best_metric,
    "metric that selects the checkpoint 'best' in the last phase, on the validation split where "
    "the data have one; empty: the task's first, accuracy for classes",
    renamed_from("best"));
  f("starved_expert_share", c.starved_expert_share,
    "smallest load of an expert that is not starved, as a fraction of a uniform load",
    between(0.0, 1.0));
  f("starved_expert_steps", c.starved_expert_steps,
    "number of steps that an expert is starved before a warning names it; 0: no warning",
    between(0, kMaxSteps));
  f("data_changed", c.data_changed,
    "reaction of --resume to data whose classes, size, labels or files changed since the start: "
    "refuse: error; accept: warning",
    one_of({"refuse", "accept"}));
  f("parallel", c.parallel, "division of the work among the processes of torchrun, mpirun or srun");
  f("phases", c.phases, "training phases, in order", required, not_empty);
}
ConfigProblem config_problem(const RunConfig& config);

/// Makes relative paths to data and checkpoints absolute.
void make_names_absolute(RunConfig& config);

/// Returns the configuration that a run was started with as a run that starts now would store it:
/// an older version kept names of data as they were given.
Json with_absolute_names(Json started);

/// Returns stored settings with the defaults of those that a later version added; what cannot be
/// read is returned as it is.
template <class T>
Json with_current_settings(const Json& stored) try {
  return to_json(parse<T>(Value::from_json(stored, "stored settings")));
} catch (const Error&) {
  return stored;
}

/// Returns the settings of a stored run by which its results can differ, as this version writes
/// them: all but num_loader_threads, checkpoint_every, num_checkpoints, activation_checkpointing,
/// starved_expert_share, starved_expert_steps, data_changed and parallel.
Json settings_of_results(Json run);

/// Returns in what stored settings differ, apart from how versions name and complete the settings
/// of a network: those of every "model" within them.
std::vector<Difference> setting_changes(nlohmann::ordered_json before, nlohmann::ordered_json now);

/// Throws Error (usage) that names the deciding settings in which `now` differs from the
/// configuration that the run was started with. `suggestion` ends the message.
void check_same_run(const Json& started, const Json& now, const std::string& folder,
                    const std::string& suggestion = "give another --out");

}  // namespace moesaic
