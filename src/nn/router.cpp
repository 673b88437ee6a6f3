// SPDX-License-Identifier: Apache-2.0
#include "moesaic/nn/router.h"

#include <torch/torch.h>

#include "moesaic/nn/init.h"
#include "moesaic/ops/autocast.h"

namespace moesaic::nn {

RouterImpl::RouterImpl(RouterOptions options, at::Generator generator)
    : options_(std::move(options)) {
  weight = register_parameter("weight", torch::empty({options_.experts, options_.width}));
  lecun_normal(weight, options_.width, std::move(generator));
}

at::Tensor RouterImpl::logits(const at::Tensor& x_Td) const {
  const NoAutocast exact;  // small differences between logits decide which experts compute
  return torch::mm(x_Td.to(weight.scalar_type()), weight.t());
}

RouterOutput RouterImpl::forward(const at::Tensor& x_Td, const at::Generator& random) const {
  const at::Tensor clean = logits(x_Td);
  const bool noise = random.defined() && options_.noise.scale > 0.0;
  const at::Tensor noisy = noise ? add_router_noise(clean, options_.noise, random) : clean;
  return {clean, noisy, nn::route(noisy, options_.rule)};
}

}  // namespace moesaic::nn
