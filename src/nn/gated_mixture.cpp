// SPDX-License-Identifier: Apache-2.0
#include "moesaic/nn/gated_mixture.h"

#include <torch/torch.h>

#include <utility>

namespace moesaic::nn {

GatedMixtureImpl::GatedMixtureImpl(GatedMixtureOptions options, const at::Generator& generator)
    : options_(options) {
  regressors = register_parameter("regressors", torch::empty({options.experts, options.width}));
  gates = register_parameter("gates", torch::zeros({options.experts - 1, options.width}));
  const torch::NoGradGuard no_grad;
  regressors.normal_(0.0, 1.0, generator);
  regressors.div_(regressors.norm(2, {1}, true));
}

at::Tensor GatedMixtureImpl::probabilities(const at::Tensor& x_Bd) const {
  return at::constant_pad_nd(x_Bd.mm(gates.t()), {0, 1}).softmax(1);
}

at::Tensor GatedMixtureImpl::outputs(const at::Tensor& x_Bd) const {
  return apply_link(x_Bd.mm(regressors.t()), options_.link);
}

at::Tensor GatedMixtureImpl::forward(const at::Tensor& x_Bd) const {
  return (probabilities(x_Bd) * outputs(x_Bd)).sum(1);
}

std::shared_ptr<GatedMixtureImpl> find_gated_mixture(const torch::nn::Module& network) {
  for (const auto& module : network.modules(/*include_self=*/false)) {
    if (auto found = std::dynamic_pointer_cast<GatedMixtureImpl>(module)) return found;
  }
  return nullptr;
}

}  // namespace moesaic::nn
