// SPDX-License-Identifier: Apache-2.0
// As MlpLayer::forward, in bfloat16: sums, bias and activation are float32, what goes into a
// product and the result are rounded.
#pragma once

#include <c10/util/BFloat16.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "bfloat16.h"
#include "mlp_layer.h"

namespace moesaic::ops {

struct Bfloat16Layer {
  PanelMatrix<c10::BFloat16> w1, w2;
  Activation activation;
  const Bfloat16Kernels& kernels = *bfloat16_kernels();

  /// Whether the processor and the sizes allow it: factors come in pairs.
  static bool possible(const at::Tensor& w1) {
    return bfloat16_kernels() != nullptr && w1.size(1) % 2 == 0 && w1.size(2) % 2 == 0;
  }

  int64_t width() const { return w1.rows; }
  int64_t hidden() const { return w1.columns; }
  int64_t stretch() const { return std::min(hidden(), kStretch); }

  struct ForwardArrays {
    const c10::BFloat16* x;
    const int32_t* token;  // row r is x[token[r]]; null: x[r]
    const c10::BFloat16 *b1, *b2;
    c10::BFloat16* y;
  };

  /// float32 scalars of scratch for blocks of `rows`: sums [rows, d] and [rows, panel], and half of
  /// that many for a panel, the gathered rows and the activations.
  int64_t forward_scratch(int64_t rows) const {
    return whole_lines(rows * width()) + whole_lines(rows * kernels.columns) + panel_size() +
           whole_lines(rows * width() / 2) + rows * stretch() / 2;
  }

  void forward(const Segment& s, const ForwardArrays& in, float* scratch) const {
    const int64_t d = width(), m = hidden(), e = s.expert, rows = s.rows();
    float* sums = scratch;
    float* seen = sums + whole_lines(rows * d);
    auto* packed = reinterpret_cast<uint16_t*>(seen + whole_lines(rows * kernels.columns));
    uint16_t* gathered = packed + 2 * panel_size();
    uint16_t* active = gathered + 2 * whole_lines(rows * d / 2);
    const uint16_t* x = in.token == nullptr ? bits(in.x + s.begin * d) : gathered;
    for (int64_t r = 0; in.token != nullptr && r < rows; ++r) {
      std::memcpy(gathered + r * d, in.x + in.token[s.begin + r] * d, d * sizeof(uint16_t));
    }
    for (int64_t from = 0; from < m; from += stretch()) {
      const int64_t count = std::min(stretch(), m - from);
      for (int64_t column = 0; column < count; column += kernels.columns) {
        const auto panel = w1.panel(e, 0, d, from + column, kernels.columns);
        pack(panel, packed);
        kernels.multiply({rows, d, panel.columns, x, d, packed, bits(in.b1 + e * m + from + column),
                          seen, kernels.columns, false});
        kernels.activate(activation, rows, panel.columns, seen, kernels.columns, active + column,
                         count);
      }
      for (int64_t column = 0; column < d; column += kernels.columns) {
        const auto panel = w2.panel(e, from, count, column, kernels.columns);
        pack(panel, packed);
        kernels.multiply({rows, count, panel.columns, active, count, packed,
                          bits(in.b2 + e * d + column), sums + column, d, from > 0});
      }
    }
    kernels.activate(Activation::identity, rows, d, sums, d,
                     reinterpret_cast<uint16_t*>(in.y + s.begin * d), d);
  }

 private:
  static const uint16_t* bits(const c10::BFloat16* values) {
    return reinterpret_cast<const uint16_t*>(values);
  }
  int64_t panel_size() const {
    return whole_lines(kernels.columns * std::max(width(), stretch()) / 2);
  }
  void pack(const PanelSource<c10::BFloat16>& panel, uint16_t* to) const {
    kernels.pack(bits(panel.data), panel.stride, panel.transposed, panel.depth, panel.columns, to);
  }
};

}  // namespace moesaic::ops
