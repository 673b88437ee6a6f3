// SPDX-License-Identifier: Apache-2.0
// Loops over one row of a tensor that several CPU kernels share.
#pragma once

#include <cstdint>

namespace moesaic::ops {

/// Rows of [A, d] that one task of a row-wise loop takes.
constexpr int64_t kRowsPerTask = 128;

template <class Scalar>
inline void add_scaled(Scalar* to, const Scalar* from, Scalar weight, int64_t width) {
  for (int64_t j = 0; j < width; ++j) to[j] += weight * from[j];
}

template <class Scalar>
inline Scalar dot(const Scalar* a, const Scalar* b, int64_t width) {
  // Eight fixed lanes: vectorises without letting the compiler choose an order of summation.
  Scalar lanes[8] = {};
  int64_t j = 0;
  for (; j + 8 <= width; j += 8) {
    for (int64_t lane = 0; lane < 8; ++lane) lanes[lane] += a[j + lane] * b[j + lane];
  }
  for (; j < width; ++j) lanes[0] += a[j] * b[j];
  return ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) +
         ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]));
}

}  // namespace moesaic::ops
