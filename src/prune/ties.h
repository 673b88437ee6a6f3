// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "moesaic/prune/plan.h"

namespace moesaic {

/// Warns if all experts among which a token chooses have the same score, since the choice is then
/// arbitrary.
void warn_of_ties(const PrunePlan& plan);

}  // namespace moesaic
