// SPDX-License-Identifier: Apache-2.0
// Loops over a row of a tensor that several CPU kernels share.
#pragma once

#include <ATen/AccumulateType.h>

#include <algorithm>
#include <cstdint>

namespace moesaic::ops {

/// Rows of [A, d] per task of a row-wise loop.
constexpr int64_t kRowsPerTask = 128;

/// Type of sums over values of a type: float32 for types of two bytes, else the type itself.
template <class Scalar>
using SumOf = at::acc_type<Scalar, /*is_cuda=*/true>;

/// Computes to[j] = sum over i < count of weight(i) * row(i)[j], in the order of i.
template <class Scalar, class RowOf, class WeightOf>
inline void weighted_sum(Scalar* to, int64_t width, int32_t count, RowOf row, WeightOf weight) {
  constexpr int64_t kPiece = 64;
  using Sum = SumOf<Scalar>;
  if (count == 1) {
    const Scalar* from = row(0);
    const Sum factor = weight(0);
    for (int64_t j = 0; j < width; ++j)
      to[j] = static_cast<Scalar>(factor * static_cast<Sum>(from[j]));
    return;
  }
  for (int64_t begin = 0; begin < width; begin += kPiece) {
    const int64_t columns = std::min(kPiece, width - begin);
    Sum sums[kPiece] = {};
    for (int32_t i = 0; i < count; ++i) {
      const Scalar* from = row(i) + begin;
      const Sum factor = weight(i);
      for (int64_t j = 0; j < columns; ++j) sums[j] += factor * static_cast<Sum>(from[j]);
    }
    for (int64_t j = 0; j < columns; ++j) to[begin + j] = static_cast<Scalar>(sums[j]);
  }
}

template <class Scalar>
inline SumOf<Scalar> dot(const Scalar* a, const Scalar* b, int64_t width) {
  // Eight fixed lanes vectorise without letting the compiler reorder the sum.
  using Sum = SumOf<Scalar>;
  Sum lanes[8] = {};
  int64_t j = 0;
  for (; j + 8 <= width; j += 8) {
    for (int64_t lane = 0; lane < 8; ++lane) {
      lanes[lane] += static_cast<Sum>(a[j + lane]) * static_cast<Sum>(b[j + lane]);
    }
  }
  for (; j < width; ++j) lanes[0] += static_cast<Sum>(a[j]) * static_cast<Sum>(b[j]);
  return ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) +
         ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]));
}

}  // namespace moesaic::ops
