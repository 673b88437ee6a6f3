// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/pimpl.h>

#include <optional>

#include "moesaic/nn/attention.h"
#include "moesaic/nn/mlp.h"
#include "moesaic/nn/moe_layer.h"

namespace moesaic::nn {

struct EncoderBlockOptions {
  int64_t width = 0, heads = 0, hidden = 0;
  std::optional<MoELayerOptions> moe;  ///< without: a dense perceptron
};

/// A pre-norm transformer block: x + attention(norm1(x)), then x + mlp(norm2(x)), where the
/// perceptron is dense or a mixture of experts over all tokens of the batch.
class EncoderBlockImpl : public torch::nn::Module {
 public:
  EncoderBlockImpl(EncoderBlockOptions options, at::Generator generator);

  struct Output {
    at::Tensor x_BTd;
    std::optional<MoEOutput> moe;
  };
  /// x_BTd [B, T, d]. Router noise is drawn from `random`, none where it is undefined.
  Output forward(const at::Tensor& x_BTd, const at::Generator& random = {});

  torch::nn::LayerNorm norm1{nullptr}, norm2{nullptr};
  SelfAttention attention{nullptr};
  Mlp mlp{nullptr};       ///< null in a block with experts
  MoELayer moe{nullptr};  ///< null in a dense block
};
TORCH_MODULE(EncoderBlock);

/// LayerNorm over the last dimension with the reference's epsilon, 1e-6.
torch::nn::LayerNorm make_layer_norm(int64_t width);

}  // namespace moesaic::nn
