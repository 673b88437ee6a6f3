// SPDX-License-Identifier: Apache-2.0
// Rows are cut into pieces by the routing alone. Gradients are sums over all rows of an expert:
// each piece has its own sums, which are added in order, so that no bit depends on the number of
// threads. Products without an activation are ATen's.
#include "moesaic/ops/filter_experts.h"

#include <ATen/ATen.h>
#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <torch/library.h>

#include <algorithm>
#include <vector>

#include "../check.h"
#include "../filters_by_grouped_mlp.h"
#include "../widened.h"
#include "filter_layer.h"
#include "large_memory.h"
#include "vector_clones.h"

namespace moesaic::ops {

namespace {

template <class Scalar>
MOESAIC_IN_CLONE void add_all_patches(const Scalar* patches, int64_t rows, int64_t count,
                                      int64_t columns, int64_t stride, Scalar* to) {
  for (int64_t r = 0; r < rows; ++r, to += stride) {
    for (int64_t p = 0; p < count; ++p, patches += stride) {
#pragma GCC ivdep
      for (int64_t j = 0; j < columns; ++j) to[j] += patches[j];
    }
  }
}

/// Sums each column in an order that does not depend on the instruction set.
template <class Scalar>
MOESAIC_IN_CLONE void sum_all_columns(const Scalar* from, int64_t rows, int64_t columns,
                                      int64_t stride, Scalar* to) {
  constexpr int64_t kLanes = 16;
  for (int64_t r = 0; r < rows; ++r, from += stride) {
    Scalar lanes[kLanes] = {};
    int64_t j = 0;
    for (; j + kLanes <= columns; j += kLanes) {
      for (int64_t lane = 0; lane < kLanes; ++lane) lanes[lane] += from[j + lane];
    }
    for (int64_t lane = 0; j < columns; ++j, ++lane) lanes[lane] += from[j];
    for (int64_t half = kLanes / 2; half > 0; half /= 2) {
      for (int64_t lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
    }
    to[r] = lanes[0];
  }
}

}  // namespace

MOESAIC_VECTOR_CLONES
void add_patches(const float* patches, int64_t rows, int64_t count, int64_t columns, int64_t stride,
                 float* to) {
  add_all_patches(patches, rows, count, columns, stride, to);
}
MOESAIC_VECTOR_CLONES
void add_patches(const double* patches, int64_t rows, int64_t count, int64_t columns,
                 int64_t stride, double* to) {
  add_all_patches(patches, rows, count, columns, stride, to);
}
MOESAIC_VECTOR_CLONES
void sum_columns(const float* from, int64_t rows, int64_t columns, int64_t stride, float* to) {
  sum_all_columns(from, rows, columns, stride, to);
}
MOESAIC_VECTOR_CLONES
void sum_columns(const double* from, int64_t rows, int64_t columns, int64_t stride, double* to) {
  sum_all_columns(from, rows, columns, stride, to);
}

std::vector<FilterPiece> filter_pieces(const int32_t* offsets, int64_t experts) {
  constexpr int64_t kPieceRows = 1024;
  std::vector<FilterPiece> pieces;
  for (int64_t e = 0; e < experts; ++e) {
    for (int64_t row = offsets[e]; row < offsets[e + 1]; row += kPieceRows) {
      pieces.push_back({row, std::min<int64_t>(row + kPieceRows, offsets[e + 1]), e});
    }
  }
  return pieces;
}

namespace {

using at::Tensor;

constexpr int64_t kRowsOfTask = 512;

int64_t filled(const Tensor& offsets) {
  return offsets.const_data_ptr<int32_t>()[offsets.size(0) - 1];
}

/// Rows of experts and their inputs.
struct FilterRows {
  Tensor x;  // [T, P, d]
  Tensor offsets, token;

  int64_t count() const { return filled(offsets); }
};

template <class Scalar>
FilterLayer<Scalar> filters_of(const FilterRows& rows, const Tensor& w, int64_t outputs,
                               int64_t activation) {
  return {rows.x.size(1), rows.x.size(2), w.size(2), outputs, static_cast<Activation>(activation)};
}

template <class Scalar>
typename FilterLayer<Scalar>::Inputs inputs_of(const FilterRows& rows, const Tensor& w,
                                               const Tensor& b) {
  return {rows.x.const_data_ptr<Scalar>(), rows.token.const_data_ptr<int32_t>(),
          w.const_data_ptr<Scalar>(), b.const_data_ptr<Scalar>()};
}

std::vector<FilterPiece> pieces_of(const FilterRows& rows) {
  return filter_pieces(rows.offsets.const_data_ptr<int32_t>(), rows.offsets.size(0) - 1);
}

/// Calls use(number of the piece, scratch) for all pieces.
template <class Use>
void for_pieces(const std::vector<FilterPiece>& pieces, int64_t scratch_bytes, Use use) {
  at::parallel_for(0, static_cast<int64_t>(pieces.size()), 1, [&](int64_t first, int64_t last) {
    const ProductsOfThread products;
    const Tensor memory = at::empty({scratch_bytes}, at::kByte);
    for (int64_t i = first; i < last; ++i) use(i, memory.mutable_data_ptr<uint8_t>());
  });
}

/// Returns the sum of each row's patches, [A, d]; rows without an expert are not written.
template <class Scalar>
Tensor sums_of_patches(const Tensor& x, const Tensor& token, int64_t rows) {
  const int64_t patches = x.size(1), width = x.size(2);
  Tensor sums = empty_large({token.size(0), width}, x.options());
  sums.slice(0, rows).zero_();
  const auto* const from = x.const_data_ptr<Scalar>();
  const auto* const tokens = token.const_data_ptr<int32_t>();
  auto* const to = sums.mutable_data_ptr<Scalar>();
  at::parallel_for(0, rows, kRowsOfTask, [&](int64_t first, int64_t last) {
    for (int64_t r = first; r < last; ++r) {
      std::fill_n(to + r * width, width, Scalar(0));
      add_patches(from + tokens[r] * patches * width, 1, patches, width, width, to + r * width);
    }
  });
  return sums;
}

/// Computes experts without an activation: the filters of an output sum to one, y = sums w + P b,
/// where w [d, C] and b [C] are summed over the filters. Products with few outputs are computed
/// transposed, which is several times as fast in MKL.
Tensor linear_filters(const Tensor& sums, const Tensor& offsets, const Tensor& w, const Tensor& b,
                      int64_t outputs, int64_t patches) {
  const int64_t each = w.size(2) / outputs;
  const Tensor whole_w = w.view({w.size(0), w.size(1), outputs, each}).sum(3);
  const Tensor whole_b = b.view({b.size(0), outputs, each}).sum(2) * patches;
  const auto* const begins = offsets.const_data_ptr<int32_t>();
  Tensor y = at::zeros({sums.size(0), outputs}, sums.options());
  for (int64_t e = 0; e < w.size(0); ++e) {
    const int64_t count = begins[e + 1] - begins[e];
    if (count == 0) continue;
    const Tensor own = sums.narrow(0, begins[e], count);
    y.narrow(0, begins[e], count)
        .copy_(at::addmm(whole_b[e].unsqueeze(1), whole_w[e].t().contiguous(), own.t()).t());
  }
  return y;
}

std::tuple<Tensor, Tensor> linear_filters_backward(const Tensor& grad, const Tensor& sums,
                                                   const Tensor& offsets, const Tensor& w,
                                                   int64_t patches) {
  const int64_t outputs = grad.size(1), each = w.size(2) / outputs;
  const auto* const begins = offsets.const_data_ptr<int32_t>();
  Tensor grad_w = at::zeros({w.size(0), w.size(1), outputs}, w.options());
  Tensor grad_b = at::zeros({w.size(0), outputs}, w.options());
  for (int64_t e = 0; e < w.size(0); ++e) {
    const int64_t count = begins[e + 1] - begins[e];
    if (count == 0) continue;
    const Tensor own = grad.narrow(0, begins[e], count);
    grad_w[e].copy_(own.t().mm(sums.narrow(0, begins[e], count)).t());
    grad_b[e].copy_(own.sum(0) * patches);
  }
  return {grad_w.repeat_interleave(each, 2), grad_b.repeat_interleave(each, 1)};
}

/// Computes y [A, C]; the activation's inputs go to `hidden`, as far as they fit.
template <class Scalar>
Tensor filters_forward(const FilterRows& rows, const Tensor& w, const Tensor& b, int64_t outputs,
                       int64_t activation, Tensor& hidden) {
  const auto layer = filters_of<Scalar>(rows, w, outputs, activation);
  const std::vector<FilterPiece> pieces = pieces_of(rows);
  // Elements past the last chunk that fits stay unused.
  const int64_t of_row = layer.patches * layer.filters;
  const int64_t room = std::min(rows.count(), hidden.numel() / std::max<int64_t>(of_row, 1));
  hidden.slice(0, std::max<int64_t>(room - layer.chunk_rows(), 0) * of_row).zero_();
  Tensor y = at::empty({rows.token.size(0), outputs}, w.options());
  const typename FilterLayer<Scalar>::Outputs out{
      {hidden.mutable_data_ptr<Scalar>(), hidden.numel()}, y.mutable_data_ptr<Scalar>()};
  const auto in = inputs_of<Scalar>(rows, w, b);
  for_pieces(pieces, layer.scratch_bytes(),
             [&](int64_t i, uint8_t* scratch) { layer.forward(pieces[i], in, out, scratch); });
  y.slice(0, rows.count()).zero_();
  return y;
}

template <class Scalar>
std::tuple<Tensor, Tensor> filters_backward(const Tensor& grad, const Tensor& hidden,
                                            const FilterRows& rows, const Tensor& w,
                                            const Tensor& b, int64_t activation) {
  const auto layer = filters_of<Scalar>(rows, w, grad.size(1), activation);
  const std::vector<FilterPiece> pieces = pieces_of(rows);
  const auto count = static_cast<int64_t>(pieces.size());
  const Tensor sums_w = at::zeros({count, w.size(1), w.size(2)}, w.options());
  const Tensor sums_b = at::zeros({count, w.size(2)}, w.options());
  const typename FilterLayer<Scalar>::Arriving arriving{
      {hidden.const_data_ptr<Scalar>(), hidden.numel()}, grad.const_data_ptr<Scalar>()};
  const auto in = inputs_of<Scalar>(rows, w, b);
  auto* const to_w = sums_w.mutable_data_ptr<Scalar>();
  auto* const to_b = sums_b.mutable_data_ptr<Scalar>();
  for_pieces(pieces, layer.scratch_bytes(), [&](int64_t i, uint8_t* scratch) {
    layer.backward(pieces[i], in, arriving,
                   {to_w + i * layer.width * layer.filters, to_b + i * layer.filters}, scratch);
  });
  Tensor grad_w = at::zeros(w.sizes(), w.options()), grad_b = at::zeros(b.sizes(), b.options());
  for (int64_t i = 0; i < count; ++i) {
    grad_w[pieces[i].expert].add_(sums_w[i]);
    grad_b[pieces[i].expert].add_(sums_b[i]);
  }
  return {grad_w, grad_b};
}

std::tuple<Tensor, Tensor> filter_experts_cpu(const Tensor& x, const Tensor& offsets,
                                              const Tensor& token, const Tensor& w,
                                              const Tensor& b_in, int64_t outputs,
                                              int64_t activation, bool keep_hidden) {
  check_filter_experts(x, offsets, token, w, b_in, outputs, activation);
  check_filter_rows(x, offsets, token);
  if (is_half_wide(x.scalar_type())) {
    return filters_by_grouped_mlp(x, offsets, token, w, b_in, outputs, activation, keep_hidden);
  }
  const FilterRows rows{x.contiguous(), offsets.contiguous(), token.contiguous()};
  const Tensor b = b_in.contiguous();
  const int64_t kept = keep_hidden ? kept_numbers(x, token, w, activation).expect_int() : 0;
  Tensor y, hidden;
  AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "filter_experts", [&] {
    if (static_cast<Activation>(activation) == Activation::identity) {
      const Tensor sums = sums_of_patches<scalar_t>(rows.x, rows.token, rows.count());
      y = linear_filters(sums, rows.offsets, w.contiguous(), b, outputs, x.size(1));
      hidden = kept > 0 ? sums.view({-1}) : at::empty({0}, x.options());
      return;
    }
    hidden = empty_large({kept}, x.options());
    y = filters_forward<scalar_t>(rows, w.contiguous(), b, outputs, activation, hidden);
  });
  return {y, hidden};
}

std::tuple<Tensor, Tensor> filter_experts_backward_cpu(const Tensor& grad_in, const Tensor& x,
                                                       const Tensor& offsets, const Tensor& token,
                                                       const Tensor& hidden_in, const Tensor& w,
                                                       const Tensor& b_in, int64_t activation) {
  check_filter_experts_backward(grad_in, x, offsets, token, hidden_in, w, b_in, activation);
  check_filter_rows(x, offsets, token);
  const Tensor grad = grad_in.contiguous(), hidden = hidden_in.contiguous();
  const Tensor b = b_in.contiguous();
  const FilterRows rows{x.contiguous(), offsets.contiguous(), token.contiguous()};
  if (static_cast<Activation>(activation) == Activation::identity) {
    return linear_filters_backward(grad, hidden.view({token.size(0), x.size(2)}), rows.offsets, w,
                                   x.size(1));
  }
  std::tuple<Tensor, Tensor> found;
  AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "filter_experts_backward", [&] {
    found = filters_backward<scalar_t>(grad, hidden, rows, w.contiguous(), b, activation);
  });
  return found;
}

TORCH_LIBRARY_IMPL(moesaic, CPU, m) {
  m.impl("filter_experts", filter_experts_cpu);
  m.impl("filter_experts_backward", filter_experts_backward_cpu);
}

}  // namespace
}  // namespace moesaic::ops
