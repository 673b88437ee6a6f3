// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

#include "moesaic/models/model.h"
#include "moesaic/prune/plan.h"
#include "moesaic/train/run_config.h"

namespace moesaic {

/// Does what a phase asks for before its first step: prunes, then gives a new head of `classes`.
/// `pretrained` is the checkpoint that the pruning compares with; empty where there is none.
/// Returns what was pruned, if anything.
std::optional<PrunePlan> apply_entry(Model& model, const EntryConfig& entry, int64_t classes,
                                     const std::filesystem::path& pretrained, uint64_t seed);

}  // namespace moesaic
