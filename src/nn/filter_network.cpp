// SPDX-License-Identifier: Apache-2.0
#include "moesaic/nn/filter_network.h"

#include <torch/torch.h>

#include <cmath>

#include "moesaic/ops/autocast.h"

namespace moesaic::nn {

FilterNetworkImpl::FilterNetworkImpl(FilterNetworkOptions options, at::Generator generator)
    : options_(options) {
  w = register_parameter("w", torch::empty({options.experts, options.width, options.filters}));
  b = register_parameter("b", torch::empty({options.experts, options.filters}));
  const torch::NoGradGuard no_grad;
  const double bound = options.init_scale / std::sqrt(static_cast<double>(options.width));
  for (at::Tensor* parameter : {&w, &b}) parameter->uniform_(-bound, bound, generator);
}

at::Tensor FilterNetworkImpl::forward(const at::Tensor& x_TPd, const Routing& routing) const {
  const NoAutocast exact;
  return filter_experts(x_TPd, routing, {w, b}, options_.outputs, options_.activation);
}

}  // namespace moesaic::nn
