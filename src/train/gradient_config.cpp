// SPDX-License-Identifier: Apache-2.0
#include "moesaic/train/gradient_config.h"

#include <fmt/format.h>

#include "check_phase.h"

namespace moesaic {
namespace {

ConfigProblem update_problem(const GradientConfig& config) {
  if (config.clip_norm > 0.0 && config.clip_value > 0.0) {
    return excluding({"clip_norm", "0"}, {"clip_value", "0"});
  }
  if (config.batch_size % config.accumulate != 0) {
    return {fmt::format("accumulate {} does not divide batch_size {}", config.accumulate,
                        config.batch_size),
            {"accumulate", "batch_size"}};
  }
  return {};
}

}  // namespace

ConfigProblem config_problem(const OptimizerConfig& config) {
  if (config.expert_norm != "joint" && config.name != "normalized_sgd") {
    return {fmt::format("'{}' normalises no expert; choose normalized_sgd", config.name),
            {"expert_norm", "name"}};
  }
  if (config.betas.size() != 2) return {"betas must hold two numbers", {"betas"}};
  if (config.weight_decay > 0.0 && !config.weight_decays.empty()) {
    return excluding({"weight_decay", "0"}, {"weight_decays", "[]"});
  }
  if (config.name == "adam" && (config.weight_decay > 0.0 || !config.weight_decays.empty())) {
    return {"'adam' has no weight decay; choose 'adamw'",
            {"name", "weight_decay", "weight_decays"}};
  }
  return first_problem({patterns_problem("no_decay", config.no_decay),
                        patterns_problem("weight_decays", config.weight_decays)});
}

ConfigProblem config_problem(const PartOptimizerConfig& config) {
  return patterns_problem("parameters", config.parameters);
}

ConfigProblem config_problem(const ScheduleConfig& config) {
  const bool falls = config.name == "cosine" || config.name == "linear";
  if (config.end > 0.0 && config.end_lr) {
    return excluding({"end", "0"}, {"end_lr", "null"});
  }
  if (!falls && (config.end > 0.0 || config.end_lr)) {
    return {fmt::format("'{}' has no end to fall to; choose cosine or linear", config.name),
            {"end_lr", "end", "name"}};
  }
  if (config.name != "rsqrt" && config.cooldown_steps > 0) {
    return {fmt::format("'{}' has no cooldown_steps; choose rsqrt", config.name),
            {"cooldown_steps", "name"}};
  }
  if (config.name != "cosine" && config.period) {
    return {fmt::format("'{}' has no period; choose cosine", config.name), {"period", "name"}};
  }
  return {};
}

ConfigProblem config_problem(const GradientConfig& config) {
  return first_problem(
      {patterns_problem("gradient_scale", config.gradient_scale), update_problem(config)});
}

}  // namespace moesaic
