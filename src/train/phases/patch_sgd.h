// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "moesaic/train/phase_kind.h"

namespace moesaic {

PhaseKind patch_sgd_kind();

}  // namespace moesaic
