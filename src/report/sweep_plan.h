// SPDX-License-Identifier: Apache-2.0
// What a sweep is going to make: sizes of networks, and the run that it begins with.
#pragma once

#include <cstdint>
#include <vector>

#include "moesaic/models/model.h"
#include "moesaic/report/prune_sweep.h"

namespace moesaic {

/// Returns the max number of experts of a layer, of those that are ranked together: in an ensemble
/// a member's.
int64_t experts_of_group(const Model& model);

/// Returns what networks of this size keep.
KeepSpec keep_of(const PruneSweepConfig& config, const SweepSize& size);

/// Returns all sizes of a network's sweep. Throws Error (usage) for one that it cannot have.
std::vector<SweepSize> sizes_of(const PruneSweepConfig& config, const Model& model);

/// Throws Error (usage) where a fine-tuned network takes the place of training and is not there.
void check_finetuned(const PruneSweepConfig& config);

/// Returns the run that a sweep begins with: training, or only recovery of what is fine-tuned.
RunConfig first_run(const PruneSweepConfig& config);

}  // namespace moesaic
