// SPDX-License-Identifier: Apache-2.0
// Products with matrices that are read, and packed, panel by panel (tile.h).
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>

#include "tile.h"

namespace moesaic::ops {

/// A stack of matrices [experts, rows, columns], each in row-major order or turned over.
template <class Scalar>
struct PanelMatrix {
  const Scalar* data;
  int64_t experts, rows, columns;
  int64_t expert_stride, stride;
  bool turned;  // columns are contiguous instead of rows

  PanelMatrix(const at::Tensor& w)
      : data(w.const_data_ptr<Scalar>()),
        experts(w.size(0)),
        rows(w.size(1)),
        columns(w.size(2)),
        expert_stride(w.stride(0)),
        stride(w.stride(2) == 1 ? w.stride(1) : w.stride(2)),
        turned(w.stride(2) != 1) {}

  PanelMatrix transposed() const {
    PanelMatrix other = *this;
    std::swap(other.rows, other.columns);
    other.turned = !turned;
    return other;
  }

  /// Rows [row, row + depth) of at most `width` columns from `column` on.
  PanelSource<Scalar> panel(int64_t expert, int64_t row, int64_t depth, int64_t column,
                            int64_t width) const {
    const Scalar* at =
        data + expert * expert_stride + (turned ? column * stride + row : row * stride + column);
    return {at, stride, depth, std::min(width, columns - column), turned};
  }

  /// What gives such panels: a function of the column, counted from `column`, and the width.
  auto at(int64_t expert, int64_t row, int64_t depth, int64_t column) const {
    return [=, this](int64_t offset, int64_t width) {
      return panel(expert, row, depth, column + offset, width);
    };
  }
};

/// Multiplies rows with a matrix that comes panel by panel.
template <class Scalar>
struct PanelMultiplier {
  const TileKernels<Scalar>& kernels;
  Scalar* packed;  // room for one panel

  struct Operands {
    int64_t rows, depth, columns;
    const Scalar* a;  // [rows, depth]
    int64_t a_stride;
    const Scalar* bias;  // [columns] or null
    Scalar* c;           // [rows, columns]
    int64_t c_stride;
    bool accumulate;
    Prefetch after;  // wanted when this product is done
  };

  /// panel_at(column, width) gives a panel of B; done(column, width) is called after each.
  template <class PanelAt, class Done>
  void operator()(const Operands& o, PanelAt panel_at, Done done) const {
    const int64_t width = kernels.columns;
    for (int64_t column = 0; column < o.columns; column += width) {
      const int64_t columns = std::min(width, o.columns - column);
      const PanelSource<Scalar> panel = panel_at(column, columns);
      const int64_t next = column + width;
      kernels.multiply({o.rows, o.depth, columns, o.a, o.a_stride, false, packed,
                        o.bias == nullptr ? nullptr : o.bias + column, o.c + column, o.c_stride,
                        o.accumulate, false,
                        next < o.columns ? panel_at(next, width).prefetch() : o.after, &panel});
      done(column, columns);
    }
  }
};

}  // namespace moesaic::ops
