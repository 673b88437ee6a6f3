// SPDX-License-Identifier: Apache-2.0
// Settings of the phase kind "gradient".
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "moesaic/base/pattern.h"
#include "moesaic/config/schema.h"
#include "moesaic/data/transforms.h"
#include "moesaic/train/objective.h"

namespace moesaic {

/// A value for all names that a pattern matches.
struct PatternValue {
  std::string pattern;
  double value = 0.0;
};
template <class Fields>
void describe(Fields& f, PatternValue& c) {
  f("pattern", c.pattern, "searched in the names of parameters", required, not_empty);
  f("value", c.value, "for those in which it is the first pattern found", required, at_least(0.0));
}

/// A list of PatternValue, whose patterns are compiled once.
class PatternValues {
 public:
  /// Throws as Pattern does.
  explicit PatternValues(const std::vector<PatternValue>& values);

  bool empty() const { return values_.empty(); }
  /// Returns the value of the first pattern that matches `name`, else `otherwise`.
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
  std::string expert_norm = "joint";
  std::vector<std::string> no_decay = {"(bias|b[12]|cls|position_embedding)$", "norm"};
  std::vector<PatternValue> weight_decays;
};
template <class Fields>
void describe(Fields& f, OptimizerConfig& c) {
  f("name", c.name, "update rule", one_of({"sgd", "normalized_sgd", "adam", "adamw"}), common);
  f("lr", c.lr, "peak learning rate", above(0.0), common);
  f("momentum", c.momentum, "sgd: fraction of the last step, m = g + momentum m", at_least(0.0),
    below(1.0));
  f("betas", c.betas, "adam and adamw: decay rates of the two moments", at_least(0.0), below(1.0));
  f("eps", c.eps, "adam and adamw: added to the root of the second moment", above(0.0));
  f("weight_decay", c.weight_decay, "decoupled: an update also takes lr * weight_decay * parameter",
    at_least(0.0), common);
  f("l2", c.l2,
    "coupled: gradients get l2 * parameter added before anything else is made of them, but after "
    "normalized_sgd has normalised them",
    at_least(0.0));
  f("expert_norm", c.expert_norm,
    "normalized_sgd: what an expert's gradients are divided by, their joint norm or the sum of the "
    "norms of its tensors",
    one_of({"joint", "sum"}));
  f("no_decay", c.no_decay, "parameters without weight decay: patterns searched in their names");
  f("weight_decays", c.weight_decays,
    "in place of weight_decay and no_decay: one for each pattern, 0 where none is found");
}
ConfigProblem config_problem(const OptimizerConfig& config);

struct ScheduleConfig {
  std::string name = "cosine";
  int64_t warmup_steps = 0;
  double end = 0.0;
  std::optional<double> end_lr;
  int64_t timescale = 10000, cooldown_steps = 0;
  std::optional<int64_t> period;
  bool by_epoch = false;
};
template <class Fields>
void describe(Fields& f, ScheduleConfig& c) {
  f("name", c.name, "course of the learning rate after the warm-up",
    one_of({"cosine", "linear", "constant", "rsqrt"}), common);
  f("warmup_steps", c.warmup_steps, "updates over which it rises linearly from 0", at_least(0),
    common);
  f("end", c.end, "fraction of the peak that is left at the phase's end", between(0.0, 1.0));
  f("end_lr", c.end_lr, "in place of end: the learning rate that is left", at_least(0.0));
  f("timescale", c.timescale, "rsqrt: updates after which 1 / sqrt(2) of the peak is left",
    at_least(1));
  f("cooldown_steps", c.cooldown_steps, "rsqrt: last updates, over which it falls linearly to 0",
    at_least(0));
  f("period", c.period,
    "cosine: updates in which it falls to its end, to rise again in as many; null: the phase's",
    at_least(1));
  f("by_epoch", c.by_epoch, "it changes between epochs alone, and period counts those");
}
ConfigProblem config_problem(const ScheduleConfig& config);

struct PartOptimizerConfig {
  std::vector<std::string> parameters;
  OptimizerConfig optimizer;
  std::optional<ScheduleConfig> schedule;
};
template <class Fields>
void describe(Fields& f, PartOptimizerConfig& c) {
  f("parameters", c.parameters, "which it moves: patterns searched in their names", required,
    not_empty);
  f("optimizer", c.optimizer, "how they are updated", required);
  f("schedule", c.schedule, "of their learning rate; null: the phase's");
}
ConfigProblem config_problem(const PartOptimizerConfig& config);

inline constexpr double kMaxBatchSize = 1048576;  // Larger batches exceed any memory.

struct StopConfig {
  double loss_threshold = 0.0;
  std::optional<double> loss_rise;
  int64_t after_steps = 0;
};
template <class Fields>
void describe(Fields& f, StopConfig& c) {
  f("loss_threshold", c.loss_threshold, "a loss so small ends the phase", at_least(0.0));
  f("loss_rise", c.loss_rise, "so does one that is more than this above the smallest so far",
    at_least(0.0));
  f("after_steps", c.after_steps, "but not before so many updates", at_least(0));
}

inline constexpr const char *kConsecutive = "consecutive", *kStrided = "strided";

struct GradientConfig {
  int64_t samples = 0, batch_size = 128;
  int64_t accumulate = 1;
  std::string accumulate_order = kConsecutive;
  OptimizerConfig optimizer;
  std::vector<PartOptimizerConfig> optimizers;
  ScheduleConfig schedule;
  std::optional<StopConfig> stop;
  std::vector<PatternValue> gradient_scale;
  double clip_norm = 0.0, clip_value = 0.0;
  Choice loss = objective_choices().front();
  AugmentConfig augment;
};
template <class Fields>
void describe(Fields& f, GradientConfig& c) {
  f("samples", c.samples,
    "N, training samples, of all classes in equal parts where the data allow, drawn by the run's "
    "seed; those of a smaller N are among them; 0: all the data",
    at_least(0));
  f("batch_size", c.batch_size, "images an update", between(1, kMaxBatchSize), common);
  f("accumulate", c.accumulate,
    "parts of equal size that a batch goes through the network in; their gradients' mean is taken",
    between(1, kMaxBatchSize));
  f("accumulate_order", c.accumulate_order,
    "images of part i of n: the next of the batch, or as the microsteps of V-MoE's trainer "
    "i, i + n, i + 2n, ...",
    one_of({kConsecutive, kStrided}));
  f("optimizer", c.optimizer, "how parameters are updated");
  f("optimizers", c.optimizers, "others for some of the parameters");
  f("schedule", c.schedule, "learning rate over the phase");
  f("stop", c.stop,
    "end the phase early, before the update of the first step whose loss says so and is not the "
    "smallest so far");
  f("gradient_scale", c.gradient_scale, "factors of gradients, before they are clipped");
  f("clip_norm", c.clip_norm, "max global norm of the gradients; 0: any", at_least(0.0), common);
  f("clip_value", c.clip_value, "or max magnitude of each of their numbers; 0: any", at_least(0.0));
  f.choice("loss", c.loss, objective_choices(), "the objective: what is minimised", common);
  f("augment", c.augment, "random changes to the images");
}
ConfigProblem config_problem(const GradientConfig& config);

}  // namespace moesaic
