// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "moesaic/base/random.h"

namespace moesaic {

/// Returns the first sample of an endless stream that a phase of this seed takes, so that runs of
/// different seeds see different samples.
inline int64_t stream_begin(uint64_t seed) {
  constexpr int kFreeBits = 23;  // Below 2^41: samples are left for any number of steps.
  return static_cast<int64_t>(mix64(seed) >> kFreeBits);
}

}  // namespace moesaic
