// SPDX-License-Identifier: Apache-2.0
// What a run will do, worked out and checked before anything is trained.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "moesaic/models/model.h"
#include "moesaic/train/datasets.h"
#include "moesaic/train/phase_kind.h"
#include "moesaic/train/run_config.h"

namespace moesaic {

/// Fits phases, network and data to one another, so that a run does not find out later. Throws
/// Error (usage) with the place of the setting to blame, e.g. for classes that differ without a new
/// head, images of another shape, a pattern that finds no parameter, a prune without its
/// pre-trained network. config.model is only asked for places, and best left as it was written.
std::vector<PhasePlan> plan_phases(const RunConfig& config, const Model& model, Datasets& datasets);

/// The network and the phases as a table for people, for --dry-run.
std::string describe_run(const RunConfig& config, const Model& model,
                         const std::vector<PhasePlan>& phases);

}  // namespace moesaic
