// SPDX-License-Identifier: Apache-2.0
// Settings of optimizers and learning-rate schedules.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "moesaic/base/pattern.h"
#include "moesaic/config/schema.h"

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

}  // namespace moesaic
