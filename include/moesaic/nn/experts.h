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
  bool bfloat16 = false;  ///< what enters and leaves the experts is rounded to bfloat16
  double dropout = 0.0;   ///< of hidden units and outputs in training
};

/// The expert networks of a layer, two-layer MLPs with stacked weights:
/// w1 [K, d, m], b1 [K, m], w2 [K, m, d], b2 [K, d].
class ExpertsImpl : public torch::nn::Module {
 public:
  ExpertsImpl(ExpertsOptions options, at::Generator generator);

  /// x_Td [T, d] -> [T, d]: dispatch, these networks, combine. In training dropout is drawn from
  /// `random`, none where it is undefined.
  //
  /// With `bfloat16` tokens are rounded before the dispatch and the experts' outputs before the
  /// combine; so are, on the way back, the gradients of outputs, of an expert's inputs and of a
  /// token's sum of these. All arithmetic keeps its own type.
  at::Tensor forward(const at::Tensor& x_Td, const Routing& routing,
                     const at::Generator& random = {}) const;

  /// Removes all but these slots (places among the present K experts, ascending): the tensors
  /// shrink.
  void keep(const std::vector<int64_t>& slots);

  const ExpertsOptions& options() const { return options_; }

  at::Tensor w1, b1, w2, b2;

 private:
  at::Tensor compute(const at::Tensor& rows_Ad, const Routing& routing,
                     const at::Generator& random) const;

  ExpertsOptions options_;
};
TORCH_MODULE(Experts);

}  // namespace moesaic::nn
