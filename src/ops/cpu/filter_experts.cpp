// SPDX-License-Identifier: Apache-2.0
// Rows are taken in pieces that are a function of the routing. Gradients are sums over all rows of
// an expert: each piece has sums of its own, which are added in order, so that no bit depends on
// the number of threads; only without an activation are the products ATen's.
#include "moesaic/ops/filter_experts.h"

#include <ATen/ATen.h>
#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <torch/library.h>

#include <algorithm>
#include <vector>

#include "../check.h"
#include "../filters_by_grouped_mlp.h"
#include "filter_layer.h"
#include "filter_order.h"
#include "large_memory.h"
#include "vector_clones.h"

namespace moesaic::ops {

MOESAIC_VECTOR_CLONES
void add_patches(const float* patches, int64_t rows, int64_t count, int64_t columns, int64_t stride,
                 float* to) {
  for (int64_t r = 0; r < rows; ++r, to += stride) {
    for (int64_t p = 0; p < count; ++p, patches += stride) {
#pragma GCC ivdep
      for (int64_t j = 0; j < columns; ++j) to[j] += patches[j];
    }
  }
}
MOESAIC_VECTOR_CLONES
void add_patches(const double* patches, int64_t rows, int64_t count, int64_t columns,
                 int64_t stride, double* to) {
  for (int64_t r = 0; r < rows; ++r, to += stride) {
    for (int64_t p = 0; p < count; ++p, patches += stride) {
#pragma GCC ivdep
      for (int64_t j = 0; j < columns; ++j) to[j] += patches[j];
    }
  }
}

namespace {

using at::Tensor;

constexpr int64_t kRowsOfTask = 512;

int64_t filled(const Tensor& offsets) {
  return offsets.const_data_ptr<int32_t>()[offsets.size(0) - 1];
}

/// Calls use(number of the piece, scratch of `scalars`) for all pieces.
template <class Scalar, class Use>
void for_pieces(const std::vector<FilterPiece>& pieces, int64_t scalars, Use use) {
  at::parallel_for(0, static_cast<int64_t>(pieces.size()), 1, [&](int64_t first, int64_t last) {
    constexpr int64_t kLineScalars = 64 / sizeof(Scalar);
    const Tensor memory =
        at::empty({scalars + kLineScalars}, c10::CppTypeToScalarType<Scalar>::value);
    auto at = reinterpret_cast<uintptr_t>(memory.mutable_data_ptr<Scalar>());
    auto* const scratch = reinterpret_cast<Scalar*>((at + 63) / 64 * 64);
    for (int64_t i = first; i < last; ++i) use(i, scratch);
  });
}

template <class Scalar>
FilterLayer<Scalar> layer_of(const Tensor& x, const Tensor& w, int64_t outputs,
                             int64_t activation) {
  return {x.size(1), x.size(2), w.size(2), outputs, static_cast<Activation>(activation)};
}

/// Large inputs are best read as they lie; what is left of parallel patches is small, and experts
/// are best read for several of its rows.
template <class Scalar>
FilterOrder order_of(const FilterLayer<Scalar>& layer, const Tensor& offsets, const Tensor& token,
                     int64_t tokens, bool parallel) {
  const int64_t experts = offsets.size(0) - 1;
  return filter_order(offsets, token, tokens,
                      experts * layer.weights_size() * static_cast<int64_t>(sizeof(Scalar)),
                      parallel ? layer.chunk_rows() : 1);
}

/// w [K, d, J] with b [K, J] in the layer's order.
template <class Scalar>
Tensor pack_experts(const FilterLayer<Scalar>& layer, const Tensor& w, const Tensor& b) {
  Tensor packed = at::empty({w.size(0), layer.weights_size()}, w.options());
  for (int64_t u = 0; u < w.size(0); ++u) {
    layer.pack(w.const_data_ptr<Scalar>() + u * w.stride(0), w.stride(1), w.stride(2),
               b.const_data_ptr<Scalar>() + u * b.size(1),
               packed.mutable_data_ptr<Scalar>() + u * layer.weights_size());
  }
  return packed;
}

/// Inputs and weights, as the kernels take them; it owns what they point to.
template <class Scalar>
struct FilterOperands {
  FilterLayer<Scalar> layer;
  Tensor x, token, directions, which, scale;
  Tensor expert_weights, direction_weights;

  FilterOperands(const FilterLayer<Scalar>& of, const Tensor& x_in, const Tensor& token_in,
                 const Tensor& w, const Tensor& b, at::TensorList parallel)
      : layer(of), x(x_in.contiguous()), token(token_in), expert_weights(pack_experts(of, w, b)) {
    if (parallel.empty()) return;
    directions = parallel[0].contiguous();
    which = parallel[1].contiguous();
    scale = parallel[2].contiguous();
    x = parallel[3].contiguous();
    const Tensor met = at::matmul(directions, w);  // [K, D, J]
    direction_weights = pack_experts(layer.met(met.size(1)), met, b);
  }

  typename FilterLayer<Scalar>::Inputs inputs() const {
    if (!which.defined()) return {x.const_data_ptr<Scalar>(), tokens(), nullptr, nullptr, 0, 0};
    return {x.const_data_ptr<Scalar>(),     tokens(),           which.const_data_ptr<int32_t>(),
            scale.const_data_ptr<Scalar>(), directions.size(0), x.size(0)};
  }
  typename FilterLayer<Scalar>::template Weights<const Scalar> weights() const {
    return {expert_weights.const_data_ptr<Scalar>(),
            which.defined() ? direction_weights.const_data_ptr<Scalar>() : nullptr};
  }

 private:
  const int32_t* tokens() const { return token.const_data_ptr<int32_t>(); }
};

/// The sum of each row's patches: [A, d]; rows that no expert has are left out.
template <class Scalar>
Tensor sums_of_patches(const Tensor& x, const Tensor& token, int64_t rows) {
  const int64_t patches = x.size(1), width = x.size(2);
  Tensor sums = at::zeros({token.size(0), width}, x.options());
  const auto* const from = x.const_data_ptr<Scalar>();
  const auto* const tokens = token.const_data_ptr<int32_t>();
  auto* const to = sums.mutable_data_ptr<Scalar>();
  at::parallel_for(0, rows, kRowsOfTask, [&](int64_t first, int64_t last) {
    for (int64_t r = first; r < last; ++r) {
      add_patches(from + tokens[r] * patches * width, 1, patches, width, width, to + r * width);
    }
  });
  return sums;
}

/// Without an activation the filters of an output are one: their sum. y = sums w + P b, where w
/// [d, C] and b [C] are summed over the filters.
Tensor linear_filters(const Tensor& sums, const Tensor& offsets, const Tensor& w, const Tensor& b,
                      int64_t outputs, int64_t patches) {
  const Tensor whole_w = w.view({w.size(0), w.size(1), outputs, -1}).sum(3);
  const Tensor whole_b = b.view({b.size(0), outputs, -1}).sum(2) * patches;
  const auto* const begins = offsets.const_data_ptr<int32_t>();
  Tensor y = at::zeros({sums.size(0), outputs}, sums.options());
  for (int64_t e = 0; e < w.size(0); ++e) {
    const int64_t count = begins[e + 1] - begins[e];
    if (count == 0) continue;
    y.narrow(0, begins[e], count)
        .copy_(at::addmm(whole_b[e], sums.narrow(0, begins[e], count), whole_w[e]));
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
    grad_w[e].copy_(sums.narrow(0, begins[e], count).t().mm(own));
    grad_b[e].copy_(own.sum(0) * patches);
  }
  return {grad_w.repeat_interleave(each, 2), grad_b.repeat_interleave(each, 1)};
}

std::tuple<Tensor, Tensor> filter_experts_cpu(const Tensor& x, const Tensor& offsets_in,
                                              const Tensor& token_in, const Tensor& w,
                                              const Tensor& b_in, int64_t outputs,
                                              int64_t activation, bool keep_hidden,
                                              at::TensorList parallel) {
  check_filter_experts(x, offsets_in, token_in, w, b_in, outputs, activation, parallel);
  if (x.scalar_type() == at::kBFloat16) {
    return filters_by_grouped_mlp(x, offsets_in, token_in, w, b_in, outputs, activation,
                                  keep_hidden, parallel);
  }
  const Tensor offsets = offsets_in.contiguous(), token = token_in.contiguous();
  const Tensor b = b_in.contiguous();
  const int64_t kept = keep_hidden ? kept_numbers(x, token, w, activation) : 0;
  if (static_cast<Activation>(activation) == Activation::identity) {
    Tensor sums;
    AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "filter_experts", [&] {
      sums = sums_of_patches<scalar_t>(x.contiguous(), token, filled(offsets));
    });
    const Tensor y = linear_filters(sums, offsets, w.contiguous(), b, outputs, x.size(1));
    return {y, kept > 0 ? sums.view({-1}) : at::empty({0}, x.options())};
  }
  Tensor y = at::empty({token.size(0), outputs}, x.options());
  Tensor hidden = empty_large({kept}, x.options());
  AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "filter_experts", [&] {
    const auto layer = layer_of<scalar_t>(x, w, outputs, activation);
    const FilterOrder order = order_of(layer, offsets, token, x.size(0), !parallel.empty());
    const FilterOperands<scalar_t> operands(layer, x, token, w, b, parallel);
    const typename FilterLayer<scalar_t>::Outputs out{
        kept > 0 ? hidden.mutable_data_ptr<scalar_t>() : nullptr, y.mutable_data_ptr<scalar_t>()};
    for_pieces<scalar_t>(order.pieces, layer.scratch(), [&](int64_t i, scalar_t* scratch) {
      layer.forward(order, order.pieces[i], operands.inputs(), operands.weights(), out, scratch);
    });
  });
  y.slice(0, filled(offsets)).zero_();
  if (kept > 0) hidden.slice(0, filled(offsets) * x.size(1) * w.size(2)).zero_();
  return {y, hidden};
}

/// Gradients of what pieces add up: of each piece's experts, one behind the other.
template <class Scalar>
struct PieceSums {
  const FilterLayer<Scalar>& layer;
  std::vector<int64_t> begins = {0};
  Tensor sums;

  PieceSums(const FilterLayer<Scalar>& of, const std::vector<FilterPiece>& pieces,
            const at::TensorOptions& options)
      : layer(of) {
    for (const FilterPiece& piece : pieces) {
      begins.push_back(begins.back() + piece.experts * layer.weights_size());
    }
    sums = at::zeros({begins.back()}, options);
  }

  Scalar* of(int64_t piece) { return sums.mutable_data_ptr<Scalar>() + begins[piece]; }

  /// Adds them in order to w [K, d, J] and b [K, J].
  void add_to(const std::vector<FilterPiece>& pieces, Tensor& w, Tensor& b) {
    for (size_t i = 0; i < pieces.size(); ++i) {
      for (int64_t e = 0; e < pieces[i].experts; ++e) {
        const int64_t expert = pieces[i].expert + e;
        layer.add_unpacked(of(static_cast<int64_t>(i)) + e * layer.weights_size(),
                           w.mutable_data_ptr<Scalar>() + expert * w.stride(0),
                           b.mutable_data_ptr<Scalar>() + expert * b.stride(0));
      }
    }
  }
};

template <class Scalar>
std::tuple<Tensor, Tensor> filters_backward(const Tensor& grad, const Tensor& hidden,
                                            const FilterOperands<Scalar>& operands,
                                            const FilterOrder& order, const Tensor& w) {
  const FilterLayer<Scalar>& layer = operands.layer;
  const int64_t directions = operands.inputs().directions;
  const FilterLayer<Scalar> met = layer.met(directions);
  PieceSums<Scalar> of_experts(layer, order.pieces, w.options());
  PieceSums<Scalar> of_directions(met, order.pieces, w.options());
  const typename FilterLayer<Scalar>::Arriving arriving{
      hidden.numel() > 0 ? hidden.const_data_ptr<Scalar>() : nullptr,
      grad.const_data_ptr<Scalar>()};
  for_pieces<Scalar>(order.pieces, layer.scratch(), [&](int64_t i, Scalar* scratch) {
    layer.backward(order, order.pieces[i], operands.inputs(), operands.weights(), arriving,
                   {of_experts.of(i), of_directions.of(i)}, scratch);
  });
  Tensor grad_w = at::zeros(w.sizes(), w.options());
  Tensor grad_b = at::zeros({w.size(0), w.size(2)}, w.options());
  of_experts.add_to(order.pieces, grad_w, grad_b);
  if (directions > 0) {
    Tensor grad_met = at::zeros({w.size(0), directions, w.size(2)}, w.options());
    of_directions.add_to(order.pieces, grad_met, grad_b);
    grad_w += at::matmul(operands.directions.t(), grad_met);
  }
  return {grad_w, grad_b};
}

std::tuple<Tensor, Tensor> filter_experts_backward_cpu(const Tensor& grad_in, const Tensor& x,
                                                       const Tensor& offsets_in,
                                                       const Tensor& token_in,
                                                       const Tensor& hidden_in, const Tensor& w,
                                                       const Tensor& b, int64_t activation,
                                                       at::TensorList parallel) {
  check_filter_experts_backward(grad_in, x, offsets_in, token_in, hidden_in, w, b, activation,
                                parallel);
  const Tensor grad = grad_in.contiguous(), hidden = hidden_in.contiguous();
  const Tensor offsets = offsets_in.contiguous(), token = token_in.contiguous();
  if (static_cast<Activation>(activation) == Activation::identity) {
    return linear_filters_backward(grad, hidden.view({-1, x.size(2)}), offsets, w, x.size(1));
  }
  std::tuple<Tensor, Tensor> found;
  AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "filter_experts_backward", [&] {
    const auto layer = layer_of<scalar_t>(x, w, grad.size(1), activation);
    const FilterOperands<scalar_t> operands(layer, x, token, w, b.contiguous(), parallel);
    found = filters_backward(grad, hidden, operands,
                             order_of(layer, offsets, token, x.size(0), !parallel.empty()), w);
  });
  return found;
}

TORCH_LIBRARY_IMPL(moesaic, CPU, m) {
  m.impl("filter_experts", filter_experts_cpu);
  m.impl("filter_experts_backward", filter_experts_backward_cpu);
}

}  // namespace
}  // namespace moesaic::ops
