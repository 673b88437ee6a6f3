// SPDX-License-Identifier: Apache-2.0
// A run: what is trained, on what, in which phases. Every setting is declared once, here.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "moesaic/base/pattern.h"
#include "moesaic/config/schema.h"
#include "moesaic/data/preprocess.h"
#include "moesaic/data/transforms.h"
#include "moesaic/train/main_loss.h"

namespace moesaic {

inline constexpr double kMaxBatchSize = 1048576;  // images; no memory holds so many at once
inline constexpr double kMaxSteps = 1e9;          // keeps products with batches within 64 bits

/// A number for all names in which a pattern is found.
struct PatternValue {
  std::string pattern;
  double value = 0.0;
};
template <class Fields>
void describe(Fields& f, PatternValue& c) {
  f("pattern", c.pattern, "searched in the names of parameters", required, not_empty);
  f("value", c.value, "for those in which it is the first pattern found", required, at_least(0.0));
}

/// A list of them, whose patterns are compiled once.
class PatternValues {
 public:
  /// Throws as Pattern does.
  explicit PatternValues(const std::vector<PatternValue>& values);

  bool empty() const { return values_.empty(); }
  /// The value of the first pattern that is found in `name`, else `otherwise`.
  double value_for(const std::string& name, double otherwise) const;

 private:
  Patterns patterns_;
  std::vector<double> values_;
};

struct OptimizerConfig {
  std::string name = "adamw";
  double lr = 1e-3;
  double momentum = 0.9;
  std::vector<double> betas = {0.9, 0.999};
  double eps = 1e-8;
  double weight_decay = 0.0;
  double l2 = 0.0;
  std::vector<std::string> no_decay = {"(bias|b[12]|cls|position_embedding)$", "norm"};
  std::vector<PatternValue> weight_decays;
};
template <class Fields>
void describe(Fields& f, OptimizerConfig& c) {
  f("name", c.name, "update rule", one_of({"sgd", "normalized_sgd", "adam", "adamw"}));
  f("lr", c.lr, "peak learning rate", above(0.0));
  f("momentum", c.momentum, "sgd: fraction of the last step, m = g + momentum m", at_least(0.0),
    below(1.0));
  f("betas", c.betas, "adam and adamw: decay rates of the two moments", at_least(0.0), below(1.0));
  f("eps", c.eps, "adam and adamw: added to the root of the second moment", above(0.0));
  f("weight_decay", c.weight_decay, "decoupled: an update also takes lr * weight_decay * parameter",
    at_least(0.0));
  f("l2", c.l2,
    "coupled: gradients get l2 * parameter added before anything else is made of them, but after "
    "normalized_sgd has normalised them",
    at_least(0.0));
  f("no_decay", c.no_decay, "parameters without weight decay: patterns searched in their names");
  f("weight_decays", c.weight_decays,
    "in place of weight_decay and no_decay: one for each pattern, 0 where none is found");
}
ConfigProblem config_problem(const OptimizerConfig& config);

struct PartOptimizerConfig {
  std::vector<std::string> parameters;
  OptimizerConfig optimizer;
};
template <class Fields>
void describe(Fields& f, PartOptimizerConfig& c) {
  f("parameters", c.parameters, "which it moves: patterns searched in their names", required,
    not_empty);
  f("optimizer", c.optimizer, "how they are updated", required);
}
ConfigProblem config_problem(const PartOptimizerConfig& config);

struct StopConfig {
  double loss_threshold = 0.0;
  std::optional<double> loss_rise;
  int64_t after_steps = 0;
};
template <class Fields>
void describe(Fields& f, StopConfig& c) {
  f("loss_threshold", c.loss_threshold, "a loss so small ends the phase", at_least(0.0));
  f("loss_rise", c.loss_rise, "so does one that is more than this above the min", at_least(0.0));
  f("after_steps", c.after_steps, "but not before so many updates", at_least(0));
}

struct ScheduleConfig {
  std::string name = "cosine";
  int64_t warmup_steps = 0;
  double end = 0.0;
  std::optional<double> end_lr;
  int64_t timescale = 10000, cooldown_steps = 0;
};
template <class Fields>
void describe(Fields& f, ScheduleConfig& c) {
  f("name", c.name, "course of the learning rate after the warm-up",
    one_of({"cosine", "linear", "constant", "rsqrt"}));
  f("warmup_steps", c.warmup_steps, "updates over which it rises linearly from 0", at_least(0));
  f("end", c.end, "fraction of the peak that is left at the phase's end", between(0.0, 1.0));
  f("end_lr", c.end_lr, "in place of end: the learning rate that is left", at_least(0.0));
  f("timescale", c.timescale, "rsqrt: updates after which 1 / sqrt(2) of the peak is left",
    at_least(1));
  f("cooldown_steps", c.cooldown_steps, "rsqrt: last updates, over which it falls linearly to 0",
    at_least(0));
}
ConfigProblem config_problem(const ScheduleConfig& config);

struct PrunePhaseConfig {
  std::string criterion = "router-norm-change";
  Value keep;
  std::string pretrained;
  Value source;  ///< where it was written
};
template <class Fields>
void describe(Fields& f, PrunePhaseConfig& c) {
  f("criterion", c.criterion, "what ranks the experts (moesaic list criteria)");
  f("keep", c.keep, "experts that stay in a layer: a fraction (0.25), a number (2) or a file",
    required);
  f("pretrained", c.pretrained, "an earlier phase, or a checkpoint, to compare with");
}

struct EntryConfig {
  bool new_head = false;
  std::optional<PrunePhaseConfig> prune;
};
template <class Fields>
void describe(Fields& f, EntryConfig& c) {
  f("new_head", c.new_head, "a fresh head for the classes of the phase's data");
  f("prune", c.prune, "remove experts");
}

struct PhaseConfig {
  std::string name;
  std::string data;
  int64_t batch_size = 128;
  std::optional<int64_t> epochs, steps;
  int64_t accumulate = 1;
  std::vector<std::string> trains = {".*"}, frozen;
  OptimizerConfig optimizer;
  std::vector<PartOptimizerConfig> optimizers;
  ScheduleConfig schedule;
  std::optional<StopConfig> stop;
  std::vector<PatternValue> gradient_scale;
  double clip_norm = 0.0, clip_value = 0.0;
  std::string loss = "softmax";
  std::map<std::string, double> aux_losses;
  PreprocessConfig preprocess;
  AugmentConfig augment;
  double label_smoothing = 0.0;
  EntryConfig on_entry;
  bool evaluate = true;
  Value source;  ///< where it was written
};
template <class Fields>
void describe(Fields& f, PhaseConfig& c) {
  f("name", c.name, "of the phase, and of the checkpoint at its end", required, not_empty);
  f("data", c.data, "data set (moesaic list datasets)", required, not_empty);
  f("batch_size", c.batch_size, "images an update", between(1, kMaxBatchSize));
  f("accumulate", c.accumulate,
    "parts of equal size that a batch goes through the network in; their gradients' mean is taken",
    between(1, kMaxBatchSize));
  f("epochs", c.epochs, "how often the data is seen", between(0, kMaxSteps));
  f("steps", c.steps, "or how many updates are made", between(0, kMaxSteps));
  f("trains", c.trains, "parameters that are trained: patterns searched in their names", not_empty);
  f("frozen", c.frozen,
    "of these, those that never move, though their gradients count in the norm: patterns");
  f("optimizer", c.optimizer, "how parameters are updated");
  f("optimizers", c.optimizers,
    "others for some of the parameters; their learning rates follow the same schedule");
  f("schedule", c.schedule, "learning rate over the phase");
  f("stop", c.stop,
    "end the phase early, before the update of the first step whose loss says so and is not the "
    "least so far");
  f("gradient_scale", c.gradient_scale, "factors of gradients, before they are clipped");
  f("clip_norm", c.clip_norm, "largest global norm of the gradients; 0: any", at_least(0.0));
  f("clip_value", c.clip_value, "or largest magnitude of each of their numbers; 0: any",
    at_least(0.0));
  f("loss", c.loss, "what logits are compared with labels by; ensemble_*: of ensembles",
    one_of(main_loss_names()));
  f("aux_losses", c.aux_losses,
    "weights of auxiliary losses: gshard, importance, load, router_z, switch_balance, "
    "switch_balance_logit",
    at_least(0.0));
  f("preprocess", c.preprocess, "what every image becomes, in training and in evaluation");
  f("augment", c.augment, "random changes to the images");
  f("label_smoothing", c.label_smoothing, "fraction of the target spread over all classes",
    at_least(0.0), below(1.0));
  f("on_entry", c.on_entry, "what happens to the network before the phase");
  f("evaluate", c.evaluate, "measure on the data's test split");
}
ConfigProblem config_problem(const PhaseConfig& config);

struct RunConfig {
  std::string name;
  int64_t seed = 1;
  std::string init;
  Value model;
  std::string precision = "float32";
  bool recompute = false;
  int64_t loader_threads = 1;
  int64_t log_every = 50;
  int64_t checkpoint_every = 500;
  int64_t keep_checkpoints = 2;
  int64_t evaluate_every = 1;
  int64_t evaluate_batch_size = 256;
  std::vector<PhaseConfig> phases;
  Value source;  ///< where it was written
};
template <class Fields>
void describe(Fields& f, RunConfig& c) {
  f("name", c.name, "of the run, and of its folder", required, not_empty);
  f("seed", c.seed, "of everything random", at_least(0));
  f("init", c.init, "checkpoint or run to start from");
  f("model", c.model, "the network (moesaic list models); may be left out where init is given");
  f("precision", c.precision,
    "of products in the network: float32, or bfloat16 where rounding does little harm; parameters, "
    "router, losses and optimizer stay float32",
    one_of({"float32", "bfloat16"}));
  f("recompute", c.recompute,
    "keep of each block its input alone and compute it again in backward: less memory, more time");
  f("loader_threads", c.loader_threads, "threads that make batches; any number gives equal bits",
    between(0, 1024));
  f("log_every", c.log_every, "updates between two lines of metrics", at_least(1));
  f("checkpoint_every", c.checkpoint_every, "updates between two checkpoints; 0: phase ends only",
    at_least(0));
  f("keep_checkpoints", c.keep_checkpoints, "checkpoints on the way that are kept", at_least(1));
  f("evaluate_every", c.evaluate_every, "epochs between two evaluations; 0: phase ends only",
    between(0, kMaxSteps));
  f("evaluate_batch_size", c.evaluate_batch_size, "images a batch in evaluations",
    between(1, kMaxBatchSize));
  f("phases", c.phases, "what is trained in turn", required, not_empty);
}
ConfigProblem config_problem(const RunConfig& config);

/// Throws Error (usage) that names the first setting in which `now` differs from what the run was
/// started with, except for those that change no number: loader_threads, checkpoint_every,
/// keep_checkpoints and recompute.
void check_same_run(const nlohmann::ordered_json& started, const nlohmann::ordered_json& now,
                    const std::string& folder);

}  // namespace moesaic
