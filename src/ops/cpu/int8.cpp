// SPDX-License-Identifier: Apache-2.0
#include "int8.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include <algorithm>

#include "moesaic/ops/function_attributes.h"

namespace moesaic::ops {
namespace {

constexpr float kLevels = 127.0f, kOffset = 128.0f;
constexpr float kLeast = 1e-35f;  // Rows below it count as zeros: 127 / x would overflow.

/// out[i, j] = row_scale[i] column_scale[j] (sums[i, j] - shift[j]), or adds that.
MOESAIC_VECTOR_CLONES void dequantise(const int32_t* sums, int64_t rows, int64_t columns,
                                      const int32_t* shift, const float* row_scale,
                                      const float* column_scale, float* out, int64_t stride,
                                      bool accumulate) {
  for (int64_t i = 0; i < rows; ++i, sums += columns, out += stride) {
#pragma GCC ivdep
    for (int64_t j = 0; j < columns; ++j) {
      const float before = accumulate ? out[j] : 0.0f;
      out[j] = before + row_scale[i] * column_scale[j] * static_cast<float>(sums[j] - shift[j]);
    }
  }
}

}  // namespace

MOESAIC_VECTOR_CLONES void quantise_rows(const float* from, int64_t stride, int64_t rows,
                                         int64_t depth, uint8_t* bytes, float* scale) {
  for (int64_t i = 0; i < rows; ++i, from += stride, bytes += depth) {
    uint32_t largest = 0;  // Bits of |x|, in the order of the numbers; NaN exceeds all.
    for (int64_t k = 0; k < depth; ++k) {
      uint32_t bits;
      __builtin_memcpy(&bits, from + k, sizeof bits);
      bits &= 0x7FFFFFFFu;
      largest = bits > largest ? bits : largest;
    }
    float most;
    __builtin_memcpy(&most, &largest, sizeof most);
    scale[i] = most / kLevels;
    const float inverse = most >= kLeast ? kLevels / most : 0.0f;
#pragma GCC ivdep
    for (int64_t k = 0; k < depth; ++k) {
      float x = from[k] * inverse;
      x = x < kLevels ? x : kLevels;  // NaN too.
      x = x > -kLevels ? x : -kLevels;
      bytes[k] = static_cast<uint8_t>(static_cast<int32_t>(x + (kOffset + 0.5f)));
    }
  }
}

QuantisedRows::QuantisedRows(const float* from, int64_t stride, int64_t rows, int64_t depth)
    : bytes(at::empty({rows, depth}, at::kByte)), scale(at::empty({rows}, at::kFloat)) {
  auto* const to = bytes.mutable_data_ptr<uint8_t>();
  auto* const scales = scale.mutable_data_ptr<float>();
  at::parallel_for(0, rows, kRowsPerTask, [&](int64_t first, int64_t last) {
    quantise_rows(from + first * stride, stride, last - first, depth, to + first * depth,
                  scales + first);
  });
}

QuantisedPanel::Memory QuantisedPanel::take(Scratch& scratch, int64_t depth, int64_t columns) {
  Memory memory{};
  memory.zeros = scratch.take<uint8_t>(depth);
  memory.shift = scratch.take<int32_t>(columns);
  memory.sums = scratch.take<int32_t>(kBlockRows * columns);
  return memory;
}

QuantisedPanel::QuantisedPanel(const int8_t* b, int64_t depth, int64_t columns, const float* scale,
                               Scratch& scratch)
    : b_(b),
      depth_(depth),
      columns_(columns),
      scale_(scale),
      memory_(take(scratch, depth, columns)) {
  std::fill_n(memory_.zeros, depth, static_cast<uint8_t>(kOffset));
  ops::multiply(Product<int8_t, uint8_t, int32_t>{1, depth, columns, memory_.zeros, depth, b,
                                                  columns, memory_.shift, columns, false});
}

void QuantisedPanel::multiply(const QuantisedRows& x, int64_t row, int64_t rows, float* sums,
                              int64_t stride, bool accumulate) const {
  ops::multiply(Product<int8_t, uint8_t, int32_t>{
      rows, depth_, columns_, x.bytes.const_data_ptr<uint8_t>() + row * depth_, depth_, b_,
      columns_, memory_.sums, columns_, false});
  dequantise(memory_.sums, rows, columns_, memory_.shift, x.scale.const_data_ptr<float>() + row,
             scale_, sums, stride, accumulate);
}

}  // namespace moesaic::ops
