// SPDX-License-Identifier: Apache-2.0
// The built-in objectives.
#pragma once

#include "moesaic/train/objective.h"

namespace moesaic {

/// Returns the objective of one of classification_losses().
ObjectiveKind classification_objective(const std::string& loss);
ObjectiveKind squared_objective();
ObjectiveKind hinge_objective();

}  // namespace moesaic
