// SPDX-License-Identifier: Apache-2.0
#include "hopper_launch.cuh"

namespace moesaic::ops::kernels::hopper {

bool product_bias_activate(const ExpertRows& at, const BFloat16* a, const BFloat16* w,
                           const BFloat16* bias, int64_t depth, int64_t columns, Act kind,
                           BFloat16* hidden, BFloat16* active, cudaStream_t stream) {
  using Product = CoreRowsTimesWeights<AddBiasActivate<BFloat16>, Sharing::in_turns, false>;
  return launch_product(
      Product{
          at.offsets, at.experts, at.rows, depth, columns, {hidden, active, bias, columns, kind}},
      a, w, stream);
}

bool product_activation_gradient(const ExpertRows& at, const BFloat16* grad, const BFloat16* w,
                                 const BFloat16* hidden, int64_t depth, int64_t columns, Act kind,
                                 BFloat16* grad_hidden, BFloat16* active, cudaStream_t stream) {
  using Product = CoreRowsTimesWeights<ActivationGradient<BFloat16>, Sharing::in_turns, true>;
  return launch_product(Product{at.offsets,
                                at.experts,
                                at.rows,
                                depth,
                                columns,
                                {hidden, grad_hidden, active, columns, kind}},
                        grad, w, stream);
}

}  // namespace moesaic::ops::kernels::hopper
