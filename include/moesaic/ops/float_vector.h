// SPDX-License-Identifier: Apache-2.0
// Vectors of floats by the compiler's extension: of any width, in the instructions of the function
// that they are inlined into.
#pragma once

#include "moesaic/ops/function_attributes.h"

namespace moesaic::ops {

/// A vector of floats, in memory at any address.
template <int lanes>
struct VectorOf {
  using Type __attribute__((vector_size(4 * lanes), aligned(4), may_alias)) = float;
};
template <int lanes>
using Vector = typename VectorOf<lanes>::Type;

/// Views `lanes` floats from `number` on as a vector.
template <int lanes>
MOESAIC_IN_CLONE Vector<lanes>& vector_at(float* number) {
  return *reinterpret_cast<Vector<lanes>*>(number);
}
/// Views read-only numbers as a vector.
template <int lanes>
MOESAIC_IN_CLONE const Vector<lanes>& vector_at(const float* number) {
  return *reinterpret_cast<const Vector<lanes>*>(number);
}

/// Transposes four numbers of four rows.
MOESAIC_IN_CLONE void transpose4(const float* const (&from)[4], float* const (&to)[4]) {
  using V = Vector<4>;
  const V r0 = vector_at<4>(from[0]), r1 = vector_at<4>(from[1]), r2 = vector_at<4>(from[2]),
          r3 = vector_at<4>(from[3]);
  const V low01 = __builtin_shufflevector(r0, r1, 0, 4, 1, 5);
  const V low23 = __builtin_shufflevector(r2, r3, 0, 4, 1, 5);
  const V high01 = __builtin_shufflevector(r0, r1, 2, 6, 3, 7);
  const V high23 = __builtin_shufflevector(r2, r3, 2, 6, 3, 7);
  vector_at<4>(to[0]) = __builtin_shufflevector(low01, low23, 0, 1, 4, 5);
  vector_at<4>(to[1]) = __builtin_shufflevector(low01, low23, 2, 3, 6, 7);
  vector_at<4>(to[2]) = __builtin_shufflevector(high01, high23, 0, 1, 4, 5);
  vector_at<4>(to[3]) = __builtin_shufflevector(high01, high23, 2, 3, 6, 7);
}

}  // namespace moesaic::ops
