// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/pimpl.h>

#include <optional>

#include "moesaic/nn/attention.h"
#include "moesaic/nn/mlp.h"
#include "moesaic/nn/moe_layer.h"
#include "moesaic/nn/shares_batch.h"

namespace moesaic::nn {

struct EncoderBlockOptions {
  AttentionOptions attention;
  int64_t hidden = 0;
  double dropout = 0.0;                ///< Rate for attention's outputs and the dense MLP.
  std::optional<MoELayerOptions> moe;  ///< Unset means a dense MLP.
};

/// A pre-norm transformer block: x + attention(norm1(x)), then x + mlp(norm2(x)), where the MLP is
/// dense or a mixture of experts over all tokens of the batch. A row of the batch is an image or,
/// in an ensemble of M members, a member's view of an image: image 0 of members 0..M-1, image 1,
/// ... The experts' tokens are then ordered by image, position and member.
class EncoderBlockImpl : public torch::nn::Module, public SharesBatch {
 public:
  EncoderBlockImpl(EncoderBlockOptions options, at::Generator generator);

  struct Output {
    at::Tensor x_BTd;
    std::optional<MoEOutput> moe;
  };
  /// Runs the block on x_BTd [B, T, d]. Router noise and, in training, dropout are drawn from
  /// `random`; without it there is neither, except by RouterOptions::evaluation_seed.
  Output forward(const at::Tensor& x_BTd, const at::Generator& random = {});

  torch::nn::LayerNorm norm1{nullptr}, norm2{nullptr};
  Attention attention{nullptr};
  Mlp mlp{nullptr};       ///< Null in a block with experts.
  MoELayer moe{nullptr};  ///< Null in a dense block.

 private:
  /// Returns x + attention(norm1(x)).
  at::Tensor mix_tokens(const at::Tensor& x_BTd, const at::Generator& random);

  double dropout_;
};
TORCH_MODULE(EncoderBlock);

/// Reorders [B M, T, d] into the rows of the experts' order, [B T M, d], and back.
at::Tensor to_member_order(const at::Tensor& x_BTd, int64_t members);
at::Tensor from_member_order(const at::Tensor& x_Td, int64_t members, at::IntArrayRef shape);

}  // namespace moesaic::nn
