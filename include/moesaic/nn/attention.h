// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

namespace moesaic::nn {

/// Multi-head self-attention with biases; query, key and value share one product (`qkv.weight` [3
/// d, d]).
class SelfAttentionImpl : public torch::nn::Module {
 public:
  SelfAttentionImpl(int64_t width, int64_t heads, at::Generator generator);

  /// x_BTd [B, T, d] -> [B, T, d].
  at::Tensor forward(const at::Tensor& x_BTd);

  torch::nn::Linear qkv{nullptr}, out{nullptr};

 private:
  int64_t heads_;
};
TORCH_MODULE(SelfAttention);

}  // namespace moesaic::nn
