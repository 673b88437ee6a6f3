// SPDX-License-Identifier: Apache-2.0
#include "moesaic/nn/gated_mixture.h"

#include <torch/torch.h>

#include <cmath>
#include <utility>
#include <vector>

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

GruMixtureImpl::GruMixtureImpl(int64_t width, int64_t hidden, GruView view,
                               const at::Generator& generator)
    : view_(view) {
  weight_ih = register_parameter("weight_ih", torch::empty({3 * hidden, width}));
  weight_hh = register_parameter("weight_hh", torch::empty({3 * hidden, hidden}));
  bias_ih = register_parameter("bias_ih", torch::empty({3 * hidden}));
  bias_hh = register_parameter("bias_hh", torch::empty({3 * hidden}));
  const torch::NoGradGuard no_grad;
  const double bound = 1.0 / std::sqrt(static_cast<double>(hidden));
  for (const at::Tensor& parameter : parameters()) parameter.uniform_(-bound, bound, generator);
}

GruStates GruMixtureImpl::forward(const at::Tensor& x_BTd) const {
  const at::Tensor inputs = at::linear(x_BTd, weight_ih, bias_ih);  // [B, T, 3 m]
  at::Tensor h = at::zeros({x_BTd.size(0), weight_hh.size(1)}, inputs.options());
  std::vector<at::Tensor> states, updates, resets;
  for (int64_t t = 0; t < x_BTd.size(1); ++t) {
    const auto of_x = inputs.select(1, t).chunk(3, 1);
    const auto of_h = at::linear(h, weight_hh, bias_hh).chunk(3, 1);
    const at::Tensor r = at::sigmoid(of_x[0] + of_h[0]);
    const at::Tensor z = at::sigmoid(-(of_x[1] + of_h[1]));
    const at::Tensor candidate = view_ == GruView::recurrent
                                     ? at::tanh(of_x[2] + r * of_h[2])
                                     : at::lerp(at::tanh(of_x[2]), at::tanh(of_x[2] + of_h[2]), r);
    h = at::lerp(h, candidate, z);
    states.push_back(h);
    updates.push_back(z);
    resets.push_back(r);
  }
  return {at::stack(states, 1), at::stack(updates, 1), at::stack(resets, 1)};
}

}  // namespace moesaic::nn
