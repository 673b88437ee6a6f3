// SPDX-License-Identifier: Apache-2.0
// The exponential of routing decisions. Every step is explicit (fused products by name), so that
// every device and instruction set yields the same bits.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "moesaic/ops/function_attributes.h"

namespace moesaic::ops {

/// Returns exp(x) for x <= 0, to 2 units in the last place; 0 below -87, exactly 1 at 0. Has no
/// calls and branches, so that loops over it vectorise.
MOESAIC_HD_INLINE float softmax_exp(float x) {
  // exp(x) = 2^n exp(r) with |r| <= ln 2 / 2, where the Taylor series to the 7th power is exact to
  // 1e-8. Adding 1.5 * 2^23 rounds to the nearest integer and leaves it in the low bits.
  const float bounded = x > -87.0f ? x : -87.0f;
  const float shifted = std::fma(bounded, 1.44269504f, 12582912.0f);
  const float n = shifted - 12582912.0f;
  float r = std::fma(n, -0.693359375f, bounded);
  r = std::fma(n, 2.12194440e-4f, r);
  float p = std::fma(1.0f / 5040.0f, r, 1.0f / 720.0f);
  p = std::fma(p, r, 1.0f / 120.0f);
  p = std::fma(p, r, 1.0f / 24.0f);
  p = std::fma(p, r, 1.0f / 6.0f);
  p = std::fma(p, r, 0.5f);
  p = std::fma(p, r, 1.0f);
  p = std::fma(p, r, 1.0f);
  int32_t bits;
  std::memcpy(&bits, &shifted, sizeof bits);
  const int32_t scale_bits = (bits - 0x4B400000 + 127) << 23;
  float scale;
  std::memcpy(&scale, &scale_bits, sizeof scale);
  return x < -87.0f ? 0.0f : p * scale;
}

/// Returns exp(x) in double precision, by the C library.
MOESAIC_HD_INLINE double softmax_exp(double x) {
  return std::exp(x);
}

}  // namespace moesaic::ops
