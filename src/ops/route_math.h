// SPDX-License-Identifier: Apache-2.0
// Arithmetic of routing decisions. Every step is explicit (fused products by name, sums in a fixed
// order), so that every device and instruction set yields the same bits and thus the same routing.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "host_device.h"

namespace moesaic::ops {

/// Returns exp(x) for x <= 0, to 2 units in the last place; 0 below -87, exactly 1 at 0. It has no
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

MOESAIC_HD_INLINE double softmax_exp(double x) {
  return std::exp(x);
}

/// Returns an unsigned key in the order of the numbers: a < b exactly where order_key(a) <
/// order_key(b). Both zeros share one key. Keys serve radix selection and sorting.
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

/// Returns a position in a queue by falling value, earlier tokens first among equal values:
/// positions compare by <. Tokens are below 2^32.
MOESAIC_HD inline uint64_t queue_place(float value, int64_t token) {
  return static_cast<uint64_t>(~order_key(value)) << 32 | static_cast<uint32_t>(token);
}

struct WideQueuePlace {
  uint64_t key, token;

  MOESAIC_HD bool operator<(const WideQueuePlace& other) const {
    return key < other.key || (key == other.key && token < other.token);
  }
};

MOESAIC_HD inline WideQueuePlace queue_place(double value, int64_t token) {
  return {~order_key(value), static_cast<uint64_t>(token)};
}

template <class Scalar>
using QueuePlace = decltype(queue_place(Scalar(), 0));

}  // namespace moesaic::ops
