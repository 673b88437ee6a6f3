// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "moesaic/prune/plan.h"

namespace moesaic {

/// Plans for two networks, without images.
inline PrunePlan plan_pruning(const Model& finetuned, const Model* pretrained,
                              const std::string& criterion, const KeepSpec& keep,
                              uint64_t seed = 0) {
  return plan_pruning({.finetuned = finetuned, .pretrained = pretrained},
                      {.criterion = criterion, .keep = keep, .seed = seed});
}

}  // namespace moesaic
