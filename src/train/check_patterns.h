// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "moesaic/models/model.h"
#include "moesaic/train/run_config.h"

namespace moesaic {

/// Throws Error (usage) for a pattern of the phase (of trains, frozen, gradient_scale, parameters
/// of optimizers and their weight_decays) that is found in the name of no parameter: with its
/// place, and the parameters that are nearest to it.
void check_patterns(const Model& model, const PhaseConfig& phase);

}  // namespace moesaic
