// SPDX-License-Identifier: Apache-2.0
// Arithmetic of routing decisions. Every step is explicit (fused products by name, sums in a fixed
// order), so that every device and instruction set yields the same bits and thus the same routing.
#pragma once

#include <cstdint>
#include <cstring>

#include "moesaic/ops/function_attributes.h"
#include "moesaic/ops/softmax_exp.h"

namespace moesaic::ops {

/// Returns an unsigned key in the order of the numbers: a < b exactly where order_key(a) <
/// order_key(b). Both zeros share one key. Keys serve radix selection.
MOESAIC_HD inline uint32_t order_key(float x) {
  const float value = x + 0.0f;  // The sum turns -0 into +0.
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

MOESAIC_HD inline uint64_t order_key(double x) {
  const double value = x + 0.0;
  uint64_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return (bits & 0x8000000000000000u) != 0 ? ~bits : bits | 0x8000000000000000u;
}

}  // namespace moesaic::ops
