// SPDX-License-Identifier: Apache-2.0
// The experts' two layers over rows that lie expert by expert (mlp_layer.h). Types of two bytes are
// multiplied as they are where the processor can, else in float32.
#include "moesaic/ops/grouped_mlp.h"

#include <ATen/Dispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros_like.h>
#include <torch/library.h>

#include "../mlp_operators.h"
#include "mlp_layer.h"
#include "moesaic/ops/memory.h"

namespace moesaic::ops {
namespace {

using at::Tensor;

int64_t filled_rows(const Tensor& offsets) {
  return offsets.const_data_ptr<int32_t>()[offsets.size(0) - 1];
}

struct MlpGradients {
  Tensor rows, w1, b1, w2, b2;
};

/// Returns memory for the sums that are rounded to `rows` in the end.
template <class Scalar>
Tensor sums_for(const Tensor& rows) {
  return kIsHalfWide<Scalar> ? empty_large(rows.sizes(), rows.options().dtype(at::kFloat)) : rows;
}

/// Sets the gradients of experts without rows to zero.
void clear_idle(const Tensor& offsets, const MlpGradients& gradients) {
  const auto* begins = offsets.const_data_ptr<int32_t>();
  for (int64_t e = 0; e + 1 < offsets.size(0); ++e) {
    if (begins[e] != begins[e + 1]) continue;
    for (const Tensor* gradient : {&gradients.w1, &gradients.b1, &gradients.w2, &gradients.b2}) {
      gradient->select(0, e).zero_();
    }
  }
}

template <class Scalar>
MlpGradients compute_backward(const MlpLayer<Scalar>& layer, const Tensor& grad, const Tensor& rows,
                              const Tensor& offsets, const Tensor& hidden) {
  const auto options = rows.options();
  MlpGradients out{empty_large(rows.sizes(), options), empty_large(layer.w1.sizes(), options),
                   at::empty({layer.experts(), layer.hidden()}, options),
                   empty_large(layer.w2.sizes(), options),
                   at::empty({layer.experts(), layer.width()}, options)};
  const Tensor grad_before = empty_large(hidden.sizes(), options);
  const Tensor sums = sums_for<Scalar>(out.rows);
  layer.backward(offsets.const_data_ptr<int32_t>(),
                 {grad.const_data_ptr<Scalar>(), rows.const_data_ptr<Scalar>(),
                  hidden.const_data_ptr<Scalar>(), out.rows.mutable_data_ptr<Scalar>(),
                  grad_before.mutable_data_ptr<Scalar>(), sums.mutable_data_ptr<SumOf<Scalar>>(),
                  out.w1.mutable_data_ptr<Scalar>(), out.b1.mutable_data_ptr<Scalar>(),
                  out.w2.mutable_data_ptr<Scalar>(), out.b2.mutable_data_ptr<Scalar>()});
  out.rows.slice(0, filled_rows(offsets)).zero_();
  clear_idle(offsets, out);
  return out;
}

std::tuple<Tensor, Tensor> grouped_mlp_cpu(const GroupedMlpArguments& in) {
  const at::ScalarType type = in.rows.scalar_type(), product = product_type(type, in.w1);
  const Tensor offsets = in.offsets.contiguous(), rows = in.rows.to(product).contiguous();
  const Tensor last_bias = in.add_b2 ? in.b2 : at::zeros_like(in.b2);
  const int64_t filled = filled_rows(offsets);
  Tensor y = empty_large(rows.sizes(), rows.options());
  Tensor hidden = empty_large({in.keep_hidden ? rows.size(0) : 0, in.w1.size(2)}, rows.options());
  MOESAIC_DISPATCH_PRODUCTS(product, "grouped_mlp", [&] {
    const auto layer = layer_of<scalar_t>({in.w1, in.b1, in.w2, last_bias}, in.activation);
    const Tensor active = empty_large({filled, layer.stretch()}, rows.options());
    const Tensor sums = sums_for<scalar_t>(y);
    layer.forward(offsets.const_data_ptr<int32_t>(),
                  {rows.const_data_ptr<scalar_t>(),
                   hidden.numel() > 0 ? hidden.mutable_data_ptr<scalar_t>() : nullptr,
                   active.mutable_data_ptr<scalar_t>(), sums.mutable_data_ptr<SumOf<scalar_t>>(),
                   y.mutable_data_ptr<scalar_t>()});
  });
  y.slice(0, filled).zero_();
  if (in.keep_hidden) hidden.slice(0, filled).zero_();
  return {y.to(type), hidden.to(type)};
}

GroupedMlpGradients grouped_mlp_backward_cpu(const GroupedMlpBackwardArguments& in) {
  const at::ScalarType type = in.rows.scalar_type(), sums = product_type(type, in.w1);
  const Tensor offsets = in.offsets.contiguous();
  const auto taken = [&](const Tensor& tensor) { return tensor.to(sums).contiguous(); };
  MlpGradients out;
  MOESAIC_DISPATCH_PRODUCTS(sums, "grouped_mlp_backward", [&] {
    out = compute_backward(layer_of<scalar_t>({in.w1, {}, in.w2, {}}, in.activation),
                           taken(in.grad), taken(in.rows), offsets, taken(in.hidden));
  });
  return {out.rows.to(type), out.w1.to(type), out.b1.to(type), out.w2.to(type), out.b2.to(type)};
}

TORCH_LIBRARY_IMPL(moesaic, CPU, m) {
  implement<GroupedMlpOperator, grouped_mlp_cpu>(m);
  implement<GroupedMlpBackward, grouped_mlp_backward_cpu>(m);
}

}  // namespace

ExpertWeights pack_experts_cpu(const ExpertWeights& weights) {
  const at::ScalarType type = weights.w1.scalar_type();
  const bool is_int8 = weights.w1_scale.defined();
  if (!is_int8 && (!weights.w1.is_cpu() || !can_be_packed(type, weights.w1))) return weights;
  ExpertWeights packed = weights;
  packed.w1 = at::empty(weights.w1.sizes(), weights.w1.options());
  packed.w2 = at::empty(weights.w2.sizes(), weights.w2.options());
  packed.is_packed = true;
  if (is_int8) {
    layer_of<float, int8_t>(weights, 0)
        .pack(packed.w1.mutable_data_ptr<int8_t>(), packed.w2.mutable_data_ptr<int8_t>());
    return packed;
  }
  MOESAIC_DISPATCH_PRODUCTS(type, "pack_experts", [&] {
    layer_of<scalar_t>(weights, 0)
        .pack(packed.w1.mutable_data_ptr<scalar_t>(), packed.w2.mutable_data_ptr<scalar_t>());
  });
  return packed;
}

}  // namespace moesaic::ops
