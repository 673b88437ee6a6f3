// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include "moesaic/nn/shares_batch.h"

namespace moesaic::nn {

/// The MLP of a dense block: fc2(gelu_tanh(fc1(x))).
class MlpImpl : public torch::nn::Module, public SharesBatch {
 public:
  /// `dropout` is the rate for the hidden units and the outputs in training.
  MlpImpl(int64_t width, int64_t hidden, at::Generator generator, double dropout = 0.0);

  /// Computes x [..., d] -> [..., d]. Dropout is drawn from `random`; undefined means no dropout.
  at::Tensor forward(const at::Tensor& x, const at::Generator& random = {});

  torch::nn::Linear fc1{nullptr}, fc2{nullptr};

 private:
  double dropout_;
};
TORCH_MODULE(Mlp);

}  // namespace moesaic::nn
