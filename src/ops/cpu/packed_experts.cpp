// SPDX-License-Identifier: Apache-2.0
#include "packed_experts.h"

#include <ATen/ops/empty.h>

#include "grouped_mlp.h"

namespace moesaic::ops {

ExpertWeights pack_experts_cpu(const ExpertWeights& weights) {
  const at::ScalarType type = weights.w1.scalar_type();
  if (!weights.w1.is_cpu() || !can_be_packed(type, weights.w1)) return weights;
  ExpertWeights packed{at::empty(weights.w1.sizes(), weights.w1.options()), weights.b1,
                       at::empty(weights.w2.sizes(), weights.w2.options()), weights.b2, true};
  MOESAIC_DISPATCH_PRODUCTS(type, "pack_experts", [&] {
    layer_of<scalar_t>(weights, 0)
        .pack(packed.w1.mutable_data_ptr<scalar_t>(), packed.w2.mutable_data_ptr<scalar_t>());
  });
  return packed;
}

}  // namespace moesaic::ops
