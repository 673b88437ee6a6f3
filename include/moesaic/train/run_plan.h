// SPDX-License-Identifier: Apache-2.0
// Plans and checks a run before anything is trained.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "moesaic/models/model.h"
#include "moesaic/train/datasets.h"
#include "moesaic/train/phase_kind.h"
#include "moesaic/train/run_config.h"

namespace moesaic {

/// What becomes of a pre-trained checkpoint that is not there: an error, or a warning in a dry run.
enum class MissingFiles { refused, planned };

/// Checks phases, network and data against one another and plans each phase. Throws Error (usage)
/// with the location of the setting to blame, e.g. for classes that differ without a new head,
/// images of another shape, a pattern that matches no parameter, pruning without its pre-trained
/// network. config.model serves for locations only and should stay as it was written.
std::vector<PhasePlan> plan_phases(const RunConfig& config, const Model& model, Datasets& datasets,
                                   MissingFiles missing = MissingFiles::refused);

/// Returns the network and the phases as a table of text, for --dry-run.
std::string describe_run(const RunConfig& config, const Model& model,
                         const std::vector<PhasePlan>& phases);

}  // namespace moesaic
