// SPDX-License-Identifier: Apache-2.0
#include "moesaic/nn/router.h"

#include <torch/torch.h>

#include "moesaic/nn/init.h"

namespace moesaic::nn {

RouterImpl::RouterImpl(RouterOptions options, at::Generator generator)
    : options_(std::move(options)) {
  weight = register_parameter("weight", torch::empty({options_.experts, options_.width}));
  lecun_normal(weight, options_.width, std::move(generator));
}

at::Tensor RouterImpl::logits(const at::Tensor& x_Td) const {
  return torch::mm(x_Td, weight.t());
}

Routing RouterImpl::route(const at::Tensor& logits_TE) const {
  return route_token_choice(logits_TE, options_.choice);
}

}  // namespace moesaic::nn
