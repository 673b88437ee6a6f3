// SPDX-License-Identifier: Apache-2.0
// Settings of the phase kind "gradient".
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "moesaic/config/schema.h"
#include "moesaic/data/transforms.h"
#include "moesaic/train/objective.h"
#include "moesaic/train/optimizer_config.h"

namespace moesaic {

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
