// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "moesaic/models/model.h"
#include "moesaic/train/places.h"

namespace moesaic {

/// Routes so many tokens without numbers: whatever a block's router refuses with this rule, that of
/// training or of evaluation, it refuses here. Throws Error (usage) with the place of the setting
/// to blame.
void check_tokens(const PhasePlaces& places, const Model& model, const MoEBlock& block,
                  const nn::RoutingRule& rule, int64_t tokens);

}  // namespace moesaic
