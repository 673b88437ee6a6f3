// SPDX-License-Identifier: Apache-2.0
// The experts' forward pass in bfloat16 with the processor's own products (AVX512-BF16): factors of
// 16 bits, sums of 32. Where the processor has none, operators compute in float32 and round.
#pragma once

#include <cstdint>

#include "moesaic/ops/activation.h"

namespace moesaic::ops {

/// One panel of a product with A [rows, depth] in bfloat16; depth is even.
struct Bfloat16Product {
  int64_t rows, depth, columns;  ///< columns at most Bfloat16Kernels::columns
  const uint16_t* a;
  int64_t a_stride;
  const uint16_t* b;     ///< packed
  const uint16_t* bias;  ///< [columns]; null: 0
  float* c;
  int64_t c_stride;
  bool accumulate;
};

struct Bfloat16Kernels {
  int64_t columns;  ///< width of a packed panel
  void (*multiply)(const Bfloat16Product&);
  /// Packs rows [0, depth) of `count` columns of a matrix whose element (k, j) is at
  /// data[k * stride + j], or at data[j * stride + k] where `transposed`.
  void (*pack)(const uint16_t* data, int64_t stride, bool transposed, int64_t depth, int64_t count,
               uint16_t* panel);
  /// out = bfloat16(act(in)), rounded to nearest even; in is overwritten.
  void (*activate)(Activation, int64_t rows, int64_t columns, float* in, int64_t in_stride,
                   uint16_t* out, int64_t out_stride);
};

/// Null where this processor, or what MOESAIC_CPU allows, has no such instructions.
const Bfloat16Kernels* bfloat16_kernels();
const Bfloat16Kernels* bfloat16_kernels_avx512();

}  // namespace moesaic::ops
