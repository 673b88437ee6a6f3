// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include "moesaic/ops/routed_mlp.h"

namespace moesaic::nn {

struct ExpertsOptions {
  int64_t experts = 0;  ///< K, those that are computed
  int64_t width = 0;    ///< d
  int64_t hidden = 0;   ///< m
  Activation activation = Activation::gelu_tanh;
};

/// The expert networks of a layer, two-layer perceptrons with stacked weights:
/// w1 [K, d, m], b1 [K, m], w2 [K, m, d], b2 [K, d].
class ExpertsImpl : public torch::nn::Module {
 public:
  ExpertsImpl(ExpertsOptions options, at::Generator generator);

  /// x_Td [T, d] -> [T, d]: dispatch, these networks, combine.
  at::Tensor forward(const at::Tensor& x_Td, const Routing& routing) const;

  /// Removes all but these slots (places among the present K experts, ascending): the tensors
  /// shrink.
  void keep(const std::vector<int64_t>& slots);

  const ExpertsOptions& options() const { return options_; }

  at::Tensor w1, b1, w2, b2;

 private:
  ExpertsOptions options_;
};
TORCH_MODULE(Experts);

}  // namespace moesaic::nn
