// SPDX-License-Identifier: Apache-2.0
// One block of one expert's rows through both products, forwards and backwards, a stretch of the
// hidden width at a time, so that what lies between the products stays in cache.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "expert_work.h"
#include "panels.h"
#include "tile.h"

namespace moesaic::ops {

/// Hidden columns that lie between two products at a time: a multiple of every panel's width.
constexpr int64_t kStretch = 768;

inline int64_t whole_lines(int64_t scalars) {
  return (scalars + 31) / 32 * 32;
}

/// A distance between rows of `width` scalars at which the rows of a tile do not fall into the same
/// few sets of the first-level cache.
template <class Scalar>
int64_t spread(int64_t width) {
  constexpr auto kLineScalars = static_cast<int64_t>(64 / sizeof(Scalar));
  const int64_t lines = (width + kLineScalars - 1) / kLineScalars;
  return (lines % 16 == 0 ? lines + 1 : lines) * kLineScalars;
}

template <class Scalar>
struct MlpLayer {
  PanelMatrix<Scalar> w1, w2;  // [d, m] and [m, d] of each expert
  Activation activation;
  const TileKernels<Scalar>& kernels = tile_kernels<Scalar>();

  int64_t width() const { return w1.rows; }
  int64_t hidden() const { return w1.columns; }
  int64_t stretch() const { return std::min(hidden(), kStretch); }

  struct ForwardArrays {
    const Scalar* x;       // [.., d]
    const int32_t* token;  // row r is x[token[r]]; null: x[r]
    const Scalar *b1, *b2;
    Scalar *y, *hidden;  // hidden: [A, m], or null where it need not be kept
  };

  int64_t panel_size() const { return whole_lines(kernels.columns * std::max(width(), stretch())); }
  /// Scalars of scratch for blocks of `rows`.
  int64_t forward_scratch(int64_t rows) const {
    return panel_size() + rows * (spread<Scalar>(width()) + spread<Scalar>(stretch()));
  }
  int64_t backward_scratch(int64_t rows) const { return forward_scratch(rows); }

  /// y = act(x W1 + b1) W2 + b2.
  void forward(const Segment& s, const ForwardArrays& in, Scalar* scratch) const {
    const int64_t d = width(), m = hidden(), e = s.expert, panel = kernels.columns;
    const int64_t x_stride = spread<Scalar>(d), active_stride = spread<Scalar>(stretch());
    Scalar* x = scratch + panel_size();
    Scalar* active = x + s.rows() * x_stride;
    gather(s, in.x, in.token, x);
    const PanelMultiplier<Scalar> multiply{kernels, scratch};
    for (int64_t from = 0; from < m; from += stretch()) {
      const int64_t count = std::min(stretch(), m - from);
      const int64_t stride = in.hidden != nullptr ? m : active_stride;
      Scalar* seen = in.hidden != nullptr ? in.hidden + s.begin * m + from : active;
      multiply({s.rows(), d, count, x, x_stride, in.b1 + e * m + from, seen, stride, false,
                w2.panel(e, from, count, 0, panel).prefetch()},
               w1.at(e, 0, d, from), [&](int64_t column, int64_t columns) {
                 kernels.activate(activation, {s.rows(), columns, stride, active_stride},
                                  seen + column, active + column);
               });
      multiply({s.rows(), count, d, active, active_stride, in.b2 + e * d, in.y + s.begin * d, d,
                from > 0, next_panel(e, from + count).prefetch()},
               w2.at(e, from, count, 0), [](int64_t, int64_t) {});
    }
  }

  struct BackwardArrays {
    const Scalar *grad, *hidden;
    Scalar *grad_hidden, *active, *grad_rows;
  };

  /// grad_hidden = (grad W2^T) * act'(hidden), active = act(hidden), grad_rows = grad_hidden W1^T.
  void backward(const Segment& s, const BackwardArrays& in, Scalar* scratch) const {
    const int64_t d = width(), m = hidden(), e = s.expert, panel = kernels.columns;
    const int64_t grad_stride = spread<Scalar>(d), near_stride = spread<Scalar>(stretch());
    const PanelMatrix<Scalar> w1t = w1.transposed(), w2t = w2.transposed();
    Scalar* grad = scratch + panel_size();
    Scalar* near = grad + s.rows() * grad_stride;  // grad_hidden while it is needed here
    gather(s, in.grad, nullptr, grad);
    const PanelMultiplier<Scalar> multiply{kernels, scratch};
    for (int64_t from = 0; from < m; from += stretch()) {
      const int64_t count = std::min(stretch(), m - from);
      const int64_t place = s.begin * m + from;
      multiply({s.rows(), d, count, grad, grad_stride, nullptr, near, near_stride, false,
                w1t.panel(e, from, count, 0, panel).prefetch()},
               w2t.at(e, 0, d, from), [&](int64_t column, int64_t columns) {
                 kernels.activate_backward(
                     activation, {s.rows(), columns, m, near_stride}, in.hidden + place + column,
                     near + column, in.active + place + column, in.grad_hidden + place + column);
               });
      multiply(
          {s.rows(), count, d, near, near_stride, nullptr, in.grad_rows + s.begin * d, d, from > 0,
           from + count < m ? w2t.panel(e, 0, d, from + count, panel).prefetch() : Prefetch{}},
          w1t.at(e, from, count, 0), [](int64_t, int64_t) {});
    }
  }

 private:
  void gather(const Segment& s, const Scalar* from, const int32_t* token, Scalar* to) const {
    const auto row = [&](int64_t r) { return from + (token == nullptr ? r : token[r]) * width(); };
    constexpr int64_t kAhead = 4;  // rows; the hardware cannot guess where they lie
    for (int64_t r = s.begin; r < s.end; ++r, to += spread<Scalar>(width())) {
      if (r + kAhead < s.end) {
        const char* soon = reinterpret_cast<const char*>(row(r + kAhead));
        for (size_t at = 0; at < width() * sizeof(Scalar); at += 64) __builtin_prefetch(soon + at);
      }
      std::memcpy(to, row(r), width() * sizeof(Scalar));
    }
  }

  /// The panel of W1 that is packed next: this expert's from hidden column `from`, or the next
  /// one's.
  PanelSource<Scalar> next_panel(int64_t expert, int64_t from) const {
    if (from < hidden()) return w1.panel(expert, 0, width(), from, kernels.columns);
    return w1.panel(std::min(expert + 1, w1.experts - 1), 0, width(), 0, kernels.columns);
  }
};

/// Weights whose inner two dimensions can be packed as they lie.
inline at::Tensor packable(const at::Tensor& w) {
  const bool by_rows = w.stride(2) == 1 && w.stride(1) >= w.size(2);
  const bool by_columns = w.stride(1) == 1 && w.stride(2) >= w.size(1);
  return by_rows || by_columns ? w : w.contiguous();
}

}  // namespace moesaic::ops
