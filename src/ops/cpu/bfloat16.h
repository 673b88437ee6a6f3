// SPDX-License-Identifier: Apache-2.0
// Forward pass of experts in bfloat16 with the processor's bfloat16 products (AVX512-BF16), summed
// in float32. On other processors the operators compute in float32 and round.
#pragma once

#include <cstdint>

#include "moesaic/ops/activation.h"

namespace moesaic::ops {

/// Product of A [rows, depth] in bfloat16 with one packed panel; depth is even.
struct Bfloat16Product {
  int64_t rows, depth, columns;  ///< At most Bfloat16Kernels::columns columns.
  const uint16_t* a;
  int64_t a_stride;
  const uint16_t* b;     ///< Packed panel.
  const uint16_t* bias;  ///< Bias [columns]; null: 0.
  float* c;
  int64_t c_stride;
  bool accumulate;
};

struct Bfloat16Kernels {
  int64_t columns;  ///< Width of a packed panel.
  void (*multiply)(const Bfloat16Product&);
  /// Packs rows [0, depth) of `count` columns of a matrix whose element (k, j) is at
  /// data[k * stride + j], or at data[j * stride + k] where `transposed`.
  void (*pack)(const uint16_t* data, int64_t stride, bool transposed, int64_t depth, int64_t count,
               uint16_t* panel);
  /// Computes out = bfloat16(act(in)), rounded to nearest even; overwrites `in`.
  void (*activate)(Activation, int64_t rows, int64_t columns, float* in, int64_t in_stride,
                   uint16_t* out, int64_t out_stride);
};

/// Returns null where this processor, or MOESAIC_CPU, excludes these instructions.
const Bfloat16Kernels* bfloat16_kernels();
const Bfloat16Kernels* bfloat16_kernels_avx512();

}  // namespace moesaic::ops
