// SPDX-License-Identifier: Apache-2.0
// The experts' two layers as products over panels of their weights. A panel is laid out in a
// thread's cache once and all rows of its expert run over it, so that every weight is read once.
#pragma once

#include <ATen/Dispatch.h>

#include <algorithm>
#include <numeric>
#include <type_traits>

#include "../check.h"
#include "activate.h"
#include "int8.h"
#include "moesaic/ops/routed_mlp.h"

namespace moesaic::ops {

/// Hidden columns that lie between the two layers at a time.
constexpr int64_t kStretch = kInt8BlockSize;

/// Returns how many columns of a matrix of so many rows make a panel: as many as fit a part of the
/// second-level cache.
template <class Scalar>
int64_t panel_width(int64_t depth) {
  constexpr int64_t kPanelBytes = 400 << 10, kStep = 32, kMax = 128;
  const int64_t fit = kPanelBytes / (depth * static_cast<int64_t>(sizeof(Scalar)));
  return std::clamp(fit / kStep * kStep, kStep, kMax);
}

/// Calls use(first row, rows) for the blocks of a panel's rows.
void for_blocks(const Panel& panel, auto use) {
  for (int64_t row = panel.begin; row < panel.end; row += kBlockRows) {
    use(row, std::min(kBlockRows, panel.end - row));
  }
}

template <class Scalar, class Weight = Scalar>
struct MlpLayer {
  using Sum = SumOf<Scalar>;
  static constexpr bool kIsQuantised = !std::is_same_v<Scalar, Weight>;
  using Rows = std::conditional_t<kIsQuantised, QuantisedRows, PlainRows<Scalar>>;
  using RightFactor = std::conditional_t<kIsQuantised, QuantisedPanel, PlainPanel<Scalar>>;

  at::Tensor w1, b1, w2, b2;  ///< [K, d, m], [K, m], [K, m, d], [K, d], contiguous.
  Activation activation;
  bool is_packed = false;                   ///< w1 and w2 are as pack() laid them out.
  at::Tensor w1_scale = {}, w2_scale = {};  ///< See ExpertWeights.

  int64_t experts() const { return w1.size(0); }
  int64_t width() const { return w1.size(1); }
  int64_t hidden() const { return w1.size(2); }
  int64_t stretch() const { return std::min(hidden(), kStretch); }

  /// Lays out all panels that forward() wants: those of an expert one after the other, in the order
  /// of stretches and columns.
  void pack(Weight* to_w1, Weight* to_w2) const {
    const int64_t d = width(), m = hidden();
    std::vector<int32_t> one_each(experts() + 1);
    std::iota(one_each.begin(), one_each.end(), 0);
    for (int64_t from = 0; from < m; from += stretch()) {
      const int64_t count = std::min(stretch(), m - from);
      const int64_t wide1 = panel_width<Weight>(d), wide2 = panel_width<Weight>(count);
      for_panels<ProductsOfThread>(panels_of(one_each.data(), experts(), count, wide1),
                                   forward_scratch(d, wide1), [&](const Panel& p, uint8_t* memory) {
                                     auto* const b = reinterpret_cast<Weight*>(memory);
                                     const int64_t column = from + p.column;
                                     std::copy_n(first_panel(p.expert, column, p.columns, b),
                                                 d * p.columns,
                                                 to_w1 + p.expert * d * m + column * d);
                                   });
      for_panels<ProductsOfThread>(
          panels_of(one_each.data(), experts(), d, wide2), forward_scratch(count, wide2),
          [&](const Panel& p, uint8_t* memory) {
            auto* const b = reinterpret_cast<Weight*>(memory);
            std::copy_n(second_panel(p.expert, from, count, p.column, p.columns, b),
                        count * p.columns, to_w2 + p.expert * d * m + from * d + p.column * count);
          });
    }
  }

  struct ForwardArrays {
    const Scalar* x;  ///< [A, d]
    Scalar* before;   ///< The activation's inputs [A, m]; null where they need not be kept.
    Scalar* active;   ///< Scratch [A, stretch()].
    Sum* sums;        ///< Scratch [A, d]; may be y.
    Scalar* y;        ///< [A, d]; may be x.
  };

  /// Computes y = act(x W1 + b1) W2 + b2, a stretch of the hidden width at a time.
  void forward(const int32_t* offsets, const ForwardArrays& in) const {
    const int64_t filled = offsets[experts()];
    const Rows x(in.x, width(), filled, width());
    for (int64_t from = 0; from < hidden(); from += stretch()) {
      const int64_t count = std::min(stretch(), hidden() - from);
      first_layer(offsets, x, in, from, count);
      second_layer(offsets, Rows(in.active, stretch(), filled, count), in, from, count);
    }
  }

  struct BackwardArrays {
    const Scalar *grad, *x, *before;  ///< [A, d], [A, d], [A, m]
    Scalar *grad_rows, *grad_before;  ///< [A, d], [A, m]
    Sum* sums;                        ///< Scratch [A, d]; may be grad_rows.
    Scalar *w1, *b1, *w2, *b2;        ///< Gradients of the weights; those of idle experts stay.
  };

  /// Computes all gradients. dW1 = x^T dH, dW2 = act(H)^T dy and dx = dH W1^T with
  /// dH = (dy W2^T) act'(H).
  void backward(const int32_t* offsets, const BackwardArrays& in) const {
    const Packed packed = pack_rows_of(offsets, in);
    const int64_t width1 = std::min<int64_t>(panel_width<Scalar>(width()), 64);
    for_panels<ProductsOfThread>(panels_of(offsets, experts(), hidden(), width1),
                                 hidden_scratch(width1), [&](const Panel& panel, uint8_t* scratch) {
                                   hidden_gradients(panel, in, packed, Scratch(scratch));
                                 });
    const int64_t width2 = panel_width<Scalar>(stretch());
    for_panels<ProductsOfThread>(panels_of(offsets, experts(), width(), width2),
                                 input_scratch(width2), [&](const Panel& panel, uint8_t* scratch) {
                                   input_gradients(panel, in, Scratch(scratch));
                                 });
  }

 private:
  const Weight* weights(const at::Tensor& w, int64_t expert) const {
    return w.const_data_ptr<Weight>() + expert * width() * hidden();
  }
  const Scalar* biases(const at::Tensor& b, int64_t expert) const {
    return b.const_data_ptr<Scalar>() + expert * b.size(1);
  }
  static const float* scales(const at::Tensor& scale, const Panel& panel, int64_t column) {
    if constexpr (!kIsQuantised) return nullptr;
    return scale.const_data_ptr<float>() + panel.expert * scale.size(1) + column;
  }

  /// Returns columns of W1, laid out in `b` unless they already are.
  const Weight* first_panel(int64_t expert, int64_t column, int64_t columns, Weight* b) const {
    if (is_packed) return weights(w1, expert) + column * width();
    pack_rows(weights(w1, expert) + column, hidden(), width(), columns, b);
    return b;
  }

  /// Returns columns of the rows [from, from + count) of W2, laid out in `b` unless they are.
  const Weight* second_panel(int64_t expert, int64_t from, int64_t count, int64_t column,
                             int64_t columns, Weight* b) const {
    const Weight* const w = weights(w2, expert) + from * width();
    if (is_packed) return w + column * count;
    pack_rows(w + column, width(), count, columns, b);
    return b;
  }

  void first_layer(const int32_t* offsets, const Rows& x, const ForwardArrays& in, int64_t from,
                   int64_t count) const {
    const int64_t d = width(), m = hidden(), wide = panel_width<Weight>(d);
    for_panels<ProductsOfThread>(
        panels_of(offsets, experts(), count, wide), forward_scratch(d, wide),
        [&](const Panel& panel, uint8_t* memory) {
          Scratch scratch(memory);
          auto* const space = scratch.take<Weight>(padded_depth<Weight>(d) * wide);
          auto* const sums = scratch.take<Sum>(kBlockRows * wide);
          const int64_t column = from + panel.column;
          const RightFactor b(first_panel(panel.expert, column, panel.columns, space), d,
                              panel.columns, scales(w1_scale, panel, column), scratch);
          for_blocks(panel, [&](int64_t row, int64_t rows) {
            b.multiply(x, row, rows, sums, panel.columns, false);
            finish({rows, panel.columns, sums, panel.columns, biases(b1, panel.expert) + column,
                    activation, in.active + row * stretch() + panel.column, stretch(),
                    in.before == nullptr ? nullptr : in.before + row * m + column, m});
          });
        });
  }

  void second_layer(const int32_t* offsets, const Rows& active, const ForwardArrays& in,
                    int64_t from, int64_t count) const {
    const int64_t d = width(), wide = panel_width<Weight>(count);
    const bool last = from + count == hidden();
    for_panels<ProductsOfThread>(
        panels_of(offsets, experts(), d, wide), forward_scratch(count, wide),
        [&](const Panel& panel, uint8_t* memory) {
          Scratch scratch(memory);
          auto* const space = scratch.take<Weight>(padded_depth<Weight>(count) * wide);
          const RightFactor b(
              second_panel(panel.expert, from, count, panel.column, panel.columns, space), count,
              panel.columns, scales(w2_scale, panel, panel.column), scratch);
          for_blocks(panel, [&](int64_t row, int64_t rows) {
            const int64_t at = row * d + panel.column;
            b.multiply(active, row, rows, in.sums + at, d, from > 0);
            if (!last) return;
            finish({rows, panel.columns, in.sums + at, d, biases(b2, panel.expert) + panel.column,
                    Activation::identity, in.y + at, d});
          });
        });
  }

  int64_t forward_scratch(int64_t depth, int64_t wide) const {
    Scratch scratch(nullptr);
    scratch.take<Weight>(padded_depth<Weight>(depth) * wide);
    scratch.take<Sum>(kBlockRows * wide);
    RightFactor::take(scratch, depth, wide);
    return scratch.taken();
  }

  /// Rows as the operands of the weights' gradients: block by block x^T and the rows of the
  /// arriving gradient, each padded to what products over rows take.
  struct Packed {
    std::vector<int64_t> begins;  ///< First padded row of each expert.
    at::Tensor x_transposed, grad;
    int64_t at(const Panel& panel, int64_t row) const {
      return begins[panel.expert] + (row - panel.begin);  // Blocks before it are whole.
    }
  };

  Packed pack_rows_of(const int32_t* offsets, const BackwardArrays& in) const {
    const int64_t d = width();
    Packed packed;
    int64_t padded = 0;
    for (int64_t e = 0; e < experts(); ++e) {
      packed.begins.push_back(padded);
      padded += padded_depth<Scalar>(offsets[e + 1] - offsets[e]);
    }
    packed.x_transposed = at::empty({padded * d}, w1.options());
    packed.grad = at::empty({padded * d}, w1.options());
    auto* const x = packed.x_transposed.template mutable_data_ptr<Scalar>();
    auto* const grad = packed.grad.template mutable_data_ptr<Scalar>();
    std::vector<Panel> blocks;
    for (const Panel& all : panels_of(offsets, experts(), d, d)) {
      for_blocks(all, [&](int64_t row, int64_t rows) {
        blocks.push_back({all.expert, row, row + rows, packed.at(all, row), d});
      });
    }
    for_panels<ProductsOfThread>(blocks, 0, [&](const Panel& block, uint8_t*) {
      transpose(in.x + block.begin * d, d, block.rows(), d, x + block.column * d);
      pack_rows(in.grad + block.begin * d, d, block.rows(), d, grad + block.column * d);
    });
    return packed;
  }

  int64_t hidden_scratch(int64_t wide) const {
    Scratch scratch(nullptr);
    take_hidden(scratch, wide);
    return scratch.taken();
  }

  struct HiddenScratch {
    Scalar *b, *active, *active_transposed, *grad;
    Sum *sums, *bias, *w1, *w2;
  };
  HiddenScratch take_hidden(Scratch& scratch, int64_t wide) const {
    HiddenScratch s{};
    s.b = scratch.take<Scalar>(width() * wide);
    s.active = scratch.take<Scalar>(kBlockRows * wide);
    s.active_transposed = scratch.take<Scalar>(kBlockRows * wide);
    s.grad = scratch.take<Scalar>(kBlockRows * wide);
    s.sums = scratch.take<Sum>(kBlockRows * wide);
    s.bias = scratch.take<Sum>(wide);
    if constexpr (kIsHalfWide<Scalar>) {
      s.w1 = scratch.take<Sum>(width() * wide);
      s.w2 = scratch.take<Sum>(width() * wide);
    }
    return s;
  }

  /// Computes the gradients of a panel of hidden columns: dH, and of dW1, db1 and dW2 what belongs
  /// to them.
  void hidden_gradients(const Panel& panel, const BackwardArrays& in, const Packed& packed,
                        Scratch scratch) const {
    const int64_t d = width(), m = hidden(), wide = panel.columns;
    HiddenScratch s = take_hidden(scratch, wide);
    Scalar* const to_w1 = in.w1 + panel.expert * d * m + panel.column;
    Scalar* const to_w2 = in.w2 + (panel.expert * m + panel.column) * d;
    const int64_t w1_stride = kIsHalfWide<Scalar> ? wide : m;
    if constexpr (!kIsHalfWide<Scalar>) {
      s.w1 = to_w1;
      s.w2 = to_w2;
    }
    std::fill_n(s.bias, wide, Sum(0));
    pack_columns(weights(w2, panel.expert) + panel.column * d, d, d, wide, s.b);
    for_blocks(panel, [&](int64_t row, int64_t rows) {
      multiply({rows, d, wide, in.grad + row * d, d, s.b, wide, s.sums, wide, false});
      Scalar* const grad = in.grad_before + row * m + panel.column;
      finish_backward({rows, wide, s.sums, wide, activation, in.before + row * m + panel.column, m,
                       grad, m, s.active, wide, s.bias});
      pack_rows(grad, m, rows, wide, s.grad);
      transpose(s.active, wide, rows, wide, s.active_transposed);
      const int64_t depth = padded_depth<Scalar>(rows), at = packed.at(panel, row) * d;
      const bool later = row > panel.begin;
      multiply({d, depth, wide, packed.x_transposed.template const_data_ptr<Scalar>() + at, depth,
                s.grad, wide, s.w1, w1_stride, later});
      multiply({wide, depth, d, s.active_transposed, depth,
                packed.grad.template const_data_ptr<Scalar>() + at, d, s.w2, d, later});
    });
    round_to(s.w1, d, wide, w1_stride, to_w1, m);
    round_to(s.w2, wide, d, d, to_w2, d);
    round_to(s.bias, 1, wide, wide, in.b1 + panel.expert * m + panel.column, m);
  }

  int64_t input_scratch(int64_t wide) const {
    Scratch scratch(nullptr);
    scratch.take<Scalar>(stretch() * wide);
    scratch.take<Sum>(wide);
    return scratch.taken();
  }

  /// Computes a panel of columns of dx, a stretch of the hidden width at a time, and of db2.
  void input_gradients(const Panel& panel, const BackwardArrays& in, Scratch scratch) const {
    const int64_t d = width(), m = hidden(), wide = panel.columns;
    auto* const b = scratch.take<Scalar>(stretch() * wide);
    auto* const bias = scratch.take<Sum>(wide);
    for (int64_t from = 0; from < m; from += stretch()) {
      const int64_t count = std::min(stretch(), m - from);
      pack_columns(weights(w1, panel.expert) + panel.column * m + from, m, count, wide, b);
      for_blocks(panel, [&](int64_t row, int64_t rows) {
        multiply({rows, count, wide, in.grad_before + row * m + from, m, b, wide,
                  in.sums + row * d + panel.column, d, from > 0});
      });
    }
    std::fill_n(bias, wide, Sum(0));
    const int64_t at = panel.begin * d + panel.column;
    round_to(in.sums + at, panel.rows(), wide, d, in.grad_rows + at, d);
    add_columns(in.grad + at, panel.rows(), wide, d, bias);
    round_to(bias, 1, wide, wide, in.b2 + panel.expert * d + panel.column, d);
  }

  static void round_to(const Sum* sums, int64_t rows, int64_t columns, int64_t stride, Scalar* to,
                       int64_t to_stride) {
    if constexpr (kIsHalfWide<Scalar>) {
      round_rows(sums, rows, columns, stride, to, to_stride);
    } else if (sums != to) {
      for (int64_t i = 0; i < rows; ++i)
        std::copy_n(sums + i * stride, columns, to + i * to_stride);
    }
  }
};

/// Dispatches to the types whose products there are.
#define MOESAIC_DISPATCH_PRODUCTS(TYPE, NAME, ...) \
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, TYPE, NAME, __VA_ARGS__)

/// Returns the type that experts of a type are multiplied in: the type itself or, where this
/// processor has no products of two bytes or cannot pair an odd number of them, float32.
inline at::ScalarType product_type(at::ScalarType type, const at::Tensor& w1) {
  if (!is_half_wide(type)) return type;
  const bool is_paired = w1.size(1) % 2 == 0 && w1.size(2) % 2 == 0;
  const ProductLayout layout =
      type == at::kHalf ? product_layout<c10::Half>() : product_layout<c10::BFloat16>();
  return layout != ProductLayout::none && is_paired ? type : at::kFloat;
}

/// Returns whether pack_experts() lays out experts of a type. float64, for checks, is not worth it.
inline bool can_be_packed(at::ScalarType type, const at::Tensor& w1) {
  return type != at::kDouble && product_type(type, w1) == type;
}

template <class Scalar, class Weight = Scalar>
MlpLayer<Scalar, Weight> layer_of(const ExpertWeights& weights, int64_t activation) {
  const auto in = [](const at::Tensor& tensor, at::ScalarType type) {
    return tensor.defined() ? tensor.to(type).contiguous() : tensor;
  };
  constexpr at::ScalarType kScalar = c10::CppTypeToScalarType<Scalar>::value;
  constexpr at::ScalarType kWeight = c10::CppTypeToScalarType<Weight>::value;
  return {in(weights.w1, kWeight),
          in(weights.b1, kScalar),
          in(weights.w2, kWeight),
          in(weights.b2, kScalar),
          static_cast<Activation>(activation),
          weights.is_packed,
          in(weights.w1_scale, at::kFloat),
          in(weights.w2_scale, at::kFloat)};
}

}  // namespace moesaic::ops
