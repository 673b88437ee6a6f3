// SPDX-License-Identifier: Apache-2.0
// What grouped_mlp and routed_mlp share on the CPU.
#pragma once

#include <ATen/Dispatch.h>

#include "../widened.h"
#include "mlp_layer.h"
#include "moesaic/ops/grouped_mlp.h"

namespace moesaic::ops {

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

template <class Scalar>
MlpLayer<Scalar> layer_of(const ExpertWeights& weights, int64_t activation) {
  const auto in = [](const at::Tensor& tensor) {
    return tensor.defined() ? tensor.to(c10::CppTypeToScalarType<Scalar>::value).contiguous()
                            : tensor;
  };
  return {in(weights.w1),
          in(weights.b1),
          in(weights.w2),
          in(weights.b2),
          static_cast<Activation>(activation),
          weights.packed};
}

}  // namespace moesaic::ops
