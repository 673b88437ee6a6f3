// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace moesaic::bench {

/// Multiplies and adds in registers alone, on the calling thread, with the widest vectors of this
/// processor, and returns the number of floating point operations.
double multiply_add(int64_t rounds);

}  // namespace moesaic::bench
