// SPDX-License-Identifier: Apache-2.0
#include "moesaic/nn/pattern_experts.h"

#include <torch/torch.h>

#include "moesaic/ops/dispatch.h"

namespace moesaic::nn {

PatternExpertsImpl::PatternExpertsImpl(int64_t experts, int64_t patterns, int64_t hidden,
                                       double std, const at::Generator& generator) {
  w = register_parameter("w",
                         torch::empty({experts, patterns, hidden}).normal_(0.0, std, generator));
  sign = register_buffer("sign", torch::ones({experts}));
  sign.narrow(0, (experts + 1) / 2, experts / 2).fill_(-1.0);
}

ExpertRows PatternExpertsImpl::compute(const at::Tensor& x_T1, const Routing& routing,
                                       const at::Generator&) {
  const at::Tensor expert_A = row_experts(routing), unused_A = expert_A.eq(routing.experts());
  const at::Tensor slot_A = expert_A.masked_fill(unused_A, 0);
  const at::Tensor pattern_A = dispatch(x_T1, routing).squeeze(1).to(at::kLong);
  const at::Tensor sums_A = w.index({slot_A, pattern_A}).relu().sum({1});
  const at::Tensor outputs_A = (sums_A * sign.index({slot_A})).masked_fill(unused_A, 0.0);
  return {outputs_A.unsqueeze(1), {}};
}

}  // namespace moesaic::nn
