// SPDX-License-Identifier: Apache-2.0
// The configuration of a run: model, data, phases.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "moesaic/base/error.h"
#include "moesaic/config/difference.h"
#include "moesaic/config/schema.h"
#include "moesaic/parallel/launch.h"
#include "moesaic/train/phase_config.h"

namespace moesaic {

struct RunConfig {
  std::string name;
  int64_t seed = 1;
  std::string init;
  Value model;
  std::string precision = "float32";
  bool tf32 = false;
  bool recompute = false;
  bool deterministic = false;
  int64_t loader_threads = 1;
  Interval log_every = Interval::of_steps(50);
  Interval checkpoint_every = Interval::of_steps(500);
  int64_t keep_checkpoints = 2;
  Interval evaluate_every = Interval::of_epochs(1);
  int64_t evaluate_batch_size = 256;
  std::string best;
  std::string data_changed = "refuse";
  ParallelConfig parallel;
  std::vector<PhaseConfig> phases;
  Value source;        ///< where it was written
  bool trust = false;  ///< see LoadOptions; no setting, since a recipe vouches for no file
};
template <class Fields>
void describe(Fields& f, RunConfig& c) {
  f("name", c.name, "name of the run, and of its folder unless --out says another", required,
    not_empty, common);
  f("seed", c.seed,
    "seed of all random numbers: weights, order of images, augmentation, noise, dropout",
    at_least(0), common);
  f("init", c.init, "checkpoint or run to start from", common);
  f("model", c.model, "the network (moesaic list models); may be left out where init is given",
    common);
  f("precision", c.precision,
    "dtype of products in the network: float32, or bfloat16 where rounding does little harm; "
    "parameters, router, losses and optimizer stay float32",
    one_of({"float32", "bfloat16"}), common);
  f("tf32", c.tf32,
    "on a GPU, let products and convolutions of float32 round their inputs to 10 bits of mantissa: "
    "several times faster");
  f("recompute", c.recompute,
    "keep of each block its input alone and compute it again in backward: less memory, more time");
  f("deterministic", c.deterministic,
    "on a GPU, equal bits from run to run, which a CPU gives in any case: slower, and the "
    "environment must hold CUBLAS_WORKSPACE_CONFIG=:4096:8");
  f("loader_threads", c.loader_threads, "threads that make batches; any number gives equal bits",
    between(0, 1024));
  f("log_every", c.log_every, "steps (updates of the run) or epochs between two lines of metrics",
    between(1, kMaxSteps), common);
  f("checkpoint_every", c.checkpoint_every,
    "steps or epochs between two checkpoints; 0: at the ends of phases only", between(0, kMaxSteps),
    common);
  f("keep_checkpoints", c.keep_checkpoints, "checkpoints on the way that are kept", at_least(1));
  f("evaluate_every", c.evaluate_every,
    "steps or epochs between two evaluations; 0: at the ends of phases only; a bare number is read "
    "as epochs, with a warning, since it was so in earlier versions",
    between(0, kMaxSteps), common);
  f("evaluate_batch_size", c.evaluate_batch_size, "images a batch in evaluations",
    between(1, kMaxBatchSize));
  f("best", c.best,
    "metric that the folder 'best' follows in the last phase, on the validation split where the "
    "data "
    "has one; empty: the task's first, accuracy for classes");
  f("data_changed", c.data_changed,
    "whether --resume goes on where classes, number, labels or files of the data are not those "
    "that "
    "the run began with",
    one_of({"refuse", "accept"}));
  f("parallel", c.parallel, "how the processes of torchrun, mpirun or srun share the work");
  f("phases", c.phases, "what is trained in turn", required, not_empty);
}
ConfigProblem config_problem(const RunConfig& config);

/// Makes paths to data and checkpoints lasting: a relative one is another from another working
/// directory.
void keep_lasting_names(RunConfig& config);

/// Returns the configuration that a run was started with as a run that starts now would store it:
/// an older version kept names of data as they were given.
nlohmann::ordered_json with_lasting_names(nlohmann::ordered_json started);

/// Returns stored settings with the defaults of those that a later version added; what cannot be
/// read is returned as it is.
template <class T>
nlohmann::ordered_json with_later_settings(const nlohmann::ordered_json& stored) {
  try {
    return to_json(parse<T>(Value::from_json(stored, "stored settings")));
  } catch (const Error&) {
    return stored;
  }
}

/// Returns the settings of a stored run by which its results can differ, as this version writes
/// them: all but loader_threads, checkpoint_every, keep_checkpoints, recompute, data_changed and
/// parallel.
nlohmann::ordered_json deciding_settings(nlohmann::ordered_json run);

/// Returns in what stored settings differ, apart from how versions name and complete the settings
/// of a network: those of every "model" within them.
std::vector<Difference> setting_changes(nlohmann::ordered_json before, nlohmann::ordered_json now);

/// Throws Error (usage) that names the deciding settings in which `now` differs from the
/// configuration that the run was started with. `way_out` ends it.
void check_same_run(const nlohmann::ordered_json& started, const nlohmann::ordered_json& now,
                    const std::string& folder, const std::string& way_out = "give another --out");

}  // namespace moesaic
