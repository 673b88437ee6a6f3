// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <memory>

#include "moesaic/ops/link.h"

namespace moesaic::nn {

struct GatedMixtureOptions {
  int64_t width = 10, experts = 2;
  Link link = Link::identity;
  double noise = 0.05;  ///< sigma of the outputs, which likelihoods need.
};

/// The gated mixture of "Learning in Gated Neural Networks" (eq. 1): expert i outputs g(<a_i, x>),
/// and P[z_i = 1 | x] = softmax_i(<w_1, x>, ..., <w_k-1, x>, 0).
class GatedMixtureImpl : public torch::nn::Module {
 public:
  /// Regressors are random unit vectors, gates 0: every expert is as probable.
  GatedMixtureImpl(GatedMixtureOptions options, const at::Generator& generator);

  /// Returns E[y | x] [B], x: [B, d].
  at::Tensor forward(const at::Tensor& x_Bd) const;
  /// Returns P[z | x] [B, k].
  at::Tensor probabilities(const at::Tensor& x_Bd) const;
  /// Returns the experts' outputs [B, k].
  at::Tensor outputs(const at::Tensor& x_Bd) const;

  const GatedMixtureOptions& options() const { return options_; }

  at::Tensor regressors;  ///< a_i, [k, d]
  at::Tensor gates;       ///< w_i, [k - 1, d]; w_k = 0

 private:
  GatedMixtureOptions options_;
};
TORCH_MODULE(GatedMixture);

/// Returns the gated mixture within a network, or null.
std::shared_ptr<GatedMixtureImpl> find_gated_mixture(const torch::nn::Module& network);

}  // namespace moesaic::nn
