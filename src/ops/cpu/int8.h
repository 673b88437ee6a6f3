// SPDX-License-Identifier: Apache-2.0
// The two factors of a layer's products, for mlp_layer.h: as they are, or rounded to eight bits
// (quantise_experts()) with exact sums of integers.
#pragma once

#include "moesaic/ops/parallel_panels.h"
#include "product.h"

namespace moesaic::ops {

/// The left factor: `depth` numbers of each of the rows [rows, stride].
template <class Scalar>
struct PlainRows {
  PlainRows(const Scalar* from, int64_t step, int64_t /*rows*/, int64_t /*depth*/)
      : x(from), stride(step) {}

  const Scalar* x;
  int64_t stride;
};

/// The same as bytes [rows, depth]: x[i, k] is near scale[i] (bytes[i, k] - 128).
struct QuantisedRows {
  QuantisedRows(const float* from, int64_t stride, int64_t rows, int64_t depth);

  at::Tensor bytes, scale;
};

/// The right factor: a panel of weights as pack_rows() lays it out.
template <class Scalar>
class PlainPanel {
 public:
  PlainPanel(const Scalar* b, int64_t depth, int64_t columns, const float* /*scale*/,
             Scratch& /*scratch*/)
      : b_(b), depth_(depth), columns_(columns) {}

  /// Takes the memory of a panel.
  static void take(Scratch& /*scratch*/, int64_t /*depth*/, int64_t /*columns*/) {}

  /// Multiplies rows [row, row + rows), at most kBlockRows, into `sums` or adds that to them.
  void multiply(const PlainRows<Scalar>& x, int64_t row, int64_t rows, SumOf<Scalar>* sums,
                int64_t stride, bool accumulate) const {
    ops::multiply({rows, depth_, columns_, x.x + row * x.stride, x.stride, b_, columns_, sums,
                   stride, accumulate});
  }

 private:
  const Scalar* b_;
  int64_t depth_, columns_;
};

/// The same of int8 weights: column j is near scale[j] times what b holds.
class QuantisedPanel {
 public:
  QuantisedPanel(const int8_t* b, int64_t depth, int64_t columns, const float* scale,
                 Scratch& scratch);

  struct Memory {
    uint8_t* zeros;  ///< [depth], a row of zeros as bytes.
    int32_t* shift;  ///< [columns], what the bytes' offset of 128 adds to each sum.
    int32_t* sums;   ///< [kBlockRows, columns]
  };
  static Memory take(Scratch& scratch, int64_t depth, int64_t columns);

  void multiply(const QuantisedRows& x, int64_t row, int64_t rows, float* sums, int64_t stride,
                bool accumulate) const;

 private:
  const int8_t* b_;
  int64_t depth_, columns_;
  const float* scale_;
  Memory memory_;
};

/// Rounds `depth` numbers of each of so many rows to bytes [rows, depth], with a scale for each
/// row. A row with a number that is not finite has such a scale.
void quantise_rows(const float* from, int64_t stride, int64_t rows, int64_t depth, uint8_t* bytes,
                   float* scale);

}  // namespace moesaic::ops
