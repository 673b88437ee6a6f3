// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "moesaic/parallel/launch.h"

namespace moesaic {

/// Returns whether process 0 came to where the processes meet, within a few seconds. If it did not,
/// it most likely ended with the same error as this one.
bool leader_waits(const Launch& launch) noexcept;

}  // namespace moesaic
