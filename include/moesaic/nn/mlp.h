// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

namespace moesaic::nn {

/// The dense block's perceptron: fc2(gelu_tanh(fc1(x))).
class MlpImpl : public torch::nn::Module {
 public:
  MlpImpl(int64_t width, int64_t hidden, at::Generator generator);

  /// x [..., d] -> [..., d].
  at::Tensor forward(const at::Tensor& x);

  torch::nn::Linear fc1{nullptr}, fc2{nullptr};
};
TORCH_MODULE(Mlp);

}  // namespace moesaic::nn
