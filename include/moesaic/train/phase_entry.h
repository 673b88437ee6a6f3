// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

#include "moesaic/models/model.h"
#include "moesaic/prune/plan.h"
#include "moesaic/train/run_config.h"

namespace moesaic {

/// Applies the changes of a phase before its first step: prunes, then gives the network a new head
/// of `classes` outputs. `pretrained` is the checkpoint that pruning compares with, empty without
/// one. Returns what was pruned, if anything.
std::optional<PrunePlan> apply_entry(Model& model, const EntryConfig& entry, int64_t classes,
                                     const std::filesystem::path& pretrained, uint64_t seed);

}  // namespace moesaic
