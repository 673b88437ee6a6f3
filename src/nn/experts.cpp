// SPDX-License-Identifier: Apache-2.0
#include "moesaic/nn/experts.h"

#include <torch/torch.h>

#include "moesaic/nn/init.h"

namespace moesaic::nn {

ExpertsImpl::ExpertsImpl(ExpertsOptions options, at::Generator generator) : options_(options) {
  const int64_t experts = options.experts, width = options.width, hidden = options.hidden;
  w1 = register_parameter("w1", torch::empty({experts, width, hidden}));
  b1 = register_parameter("b1", torch::zeros({experts, hidden}));
  w2 = register_parameter("w2", torch::empty({experts, hidden, width}));
  b2 = register_parameter("b2", torch::zeros({experts, width}));
  xavier_uniform(w1, generator);
  xavier_uniform(w2, generator);
}

at::Tensor ExpertsImpl::forward(const at::Tensor& x_Td, const Routing& routing) const {
  return routed_mlp(x_Td, routing, {w1, b1, w2, b2}, options_.activation);
}

void ExpertsImpl::keep(const std::vector<int64_t>& slots) {
  const torch::NoGradGuard no_grad;
  const at::Tensor index = torch::tensor(slots, torch::kLong).to(w1.device());
  for (at::Tensor* tensor : {&w1, &b1, &w2, &b2}) {
    tensor->mutable_grad() = at::Tensor();
    tensor->set_data(tensor->index_select(0, index));
  }
  options_.experts = static_cast<int64_t>(slots.size());
}

}  // namespace moesaic::nn
