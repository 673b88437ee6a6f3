// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "moesaic/checkpoint/store.h"
#include "moesaic/prune/criteria.h"
#include "moesaic/prune/plan.h"
#include "support/small_vmoe.h"

namespace moesaic {

/// Returns the use of a network's experts on a few images, for prune_checkpoint().
inline ExpertStatistics use_on_images(const Checkpoint&, Model& model) {
  const ExpertStatisticsMeter meter(model);
  run(model, small_images(4));
  return meter.statistics();
}

/// The small network as an ensemble, of which a token selects `choices` experts of its member.
inline VMoEConfig small_ensemble_config(int64_t members, int64_t choices = 2) {
  VMoEConfig config = small_vmoe_config();
  config.name = kE3;
  config.encoder.moe.ensemble_size = members;
  config.encoder.moe.router.k = choices;
  return config;
}

/// The small network, whose experts select tokens.
inline VMoEConfig expert_choice_config(double capacity_factor = 1.5) {
  VMoEConfig config = small_vmoe_config();
  config.encoder.moe.router.kind = RoutingKind::expert_choice;
  config.encoder.moe.router.capacity.factor = capacity_factor;
  return config;
}

/// Plans for two networks, without images.
inline PrunePlan plan_pruning(const Model& finetuned, const Model* pretrained,
                              const std::string& criterion, const KeepSpec& keep,
                              uint64_t seed = 0) {
  return plan_pruning({.finetuned = finetuned, .pretrained = pretrained},
                      {.criterion = criterion, .keep = keep, .seed = seed});
}

}  // namespace moesaic
