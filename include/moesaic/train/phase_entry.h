// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "moesaic/models/model.h"
#include "moesaic/prune/plan.h"
#include "moesaic/train/run_config.h"

namespace moesaic {

/// What entry of a phase needs beside the network.
struct EntryContext {
  int64_t classes = 0;                ///< Outputs of a new head.
  std::shared_ptr<Model> pretrained;  ///< Network that pruning compares with, or null.
  uint64_t seed = 0;
  std::function<ExpertUse()> calibrate;  ///< Measures the use of the experts where it is needed.
};

/// Returns whether the criterion, or what removed experts leave behind, needs images.
bool needs_images(const PrunePhaseConfig& prune);

/// Applies the changes of a phase before its first step: prunes, then gives the network a new head.
/// Returns what was pruned, if anything.
std::optional<PrunePlan> apply_entry(Model& model, const EntryConfig& entry,
                                     const EntryContext& context);

}  // namespace moesaic
