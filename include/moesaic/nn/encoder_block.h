// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include "moesaic/nn/batch_shard.h"
#include "moesaic/nn/moe_layer.h"

namespace moesaic::nn {

inline constexpr double kLayerNormEpsilon = 1e-6;  ///< Epsilon of the V-MoE reference.

/// Makes a LayerNorm over the last dimension, of size `width`.
torch::nn::LayerNorm make_layer_norm(int64_t width, double epsilon = kLayerNormEpsilon);

/// Makes a linear layer with zero biases and Xavier-uniform weights drawn from `generator`. `parts`
/// layers whose weights are stacked are each drawn with the fans of its own.
torch::nn::Linear make_linear(int64_t in, int64_t out, const at::Generator& generator,
                              int64_t parts = 1);

/// Sizes, activation and dropout of Mlp.
struct MlpOptions {
  int64_t width = 0;     ///< Width d of a token.
  int64_t hidden = 0;    ///< Width of the hidden layer.
  double dropout = 0.0;  ///< Dropout rate of the hidden units and the outputs in training.
  Activation activation = Activation::gelu_tanh;
};

/// The MLP of a dense block: fc2(activation(fc1(x))).
class MlpImpl : public torch::nn::Module, public DataParallelModule {
 public:
  /// Draws the initial values from `generator`.
  MlpImpl(MlpOptions options, at::Generator generator);

  /// Computes x [..., d] -> [..., d]. Dropout is drawn from `random`; undefined means no dropout.
  at::Tensor forward(const at::Tensor& x, const at::Generator& random = {});

  torch::nn::Linear fc1{nullptr}, fc2{nullptr};

 private:
  MlpOptions options_;
};
TORCH_MODULE(Mlp);

/// Sizes and dropout of Attention.
struct AttentionOptions {
  int64_t width = 0;      ///< Width d of a token.
  int64_t num_heads = 0;  ///< Number of heads, each of width c = d / heads.
  bool qk_norm = false;   ///< Normalises the queries and keys of every head.
  double dropout = 0.0;   ///< Dropout rate of the attention weights.
};

/// LayerNorm over the width of a head, with a scale (`weight` [c]) and without a bias.
class HeadNormImpl : public torch::nn::Module {
 public:
  /// Makes the scale, of ones.
  explicit HeadNormImpl(int64_t head_width);

  /// Normalises x [..., c] -> [..., c].
  at::Tensor forward(const at::Tensor& x) const;

  at::Tensor weight;
};
TORCH_MODULE(HeadNorm);

/// Multi-head attention with biases: softmax(q k^T / sqrt(c)) v for each head, then `out`. Query,
/// key and value share one weight (`qkv.weight` [3 d, d]).
class AttentionImpl : public torch::nn::Module, public DataParallelModule {
 public:
  /// Draws the initial values from `generator`.
  AttentionImpl(AttentionOptions options, at::Generator generator);

  /// Self-attention: x_BTd [B, T, d] -> [B, T, d]. In training, dropout is drawn from `random`;
  /// there is no dropout where `random` is undefined.
  at::Tensor forward(const at::Tensor& x_BTd, const at::Generator& random = {});

  /// Cross-attention: queries of query_BQd [B, Q, d] attend to x_BTd [B, T, d] -> [B, Q, d].
  at::Tensor attend(const at::Tensor& query_BQd, const at::Tensor& x_BTd,
                    const at::Generator& random = {});

  /// Returns the options as given.
  const AttentionOptions& options() const { return options_; }

  torch::nn::Linear qkv{nullptr}, out{nullptr};
  HeadNorm query_norm{nullptr}, key_norm{nullptr};  ///< Null without qk_norm.

 private:
  /// Views [B, T, d] as [B, H, T, c].
  at::Tensor heads_of(const at::Tensor& x_BTd) const {
    return x_BTd.unflatten(2, {options_.num_heads, -1}).transpose(1, 2);
  }
  at::Tensor scaled_dot_product(at::Tensor query_BHQc, at::Tensor key_BHTc,
                                const at::Tensor& value_BHTc, const at::Generator& random);

  AttentionOptions options_;
};
TORCH_MODULE(Attention);

/// Multi-head attention pooling: a is the attention of the learned `probe` over the tokens, the
/// output is a + mlp(norm(a)).
class MapHeadImpl : public torch::nn::Module {
 public:
  /// Draws the initial values from `generator`; `epsilon` is that of the norm.
  MapHeadImpl(AttentionOptions attention, MlpOptions mlp, at::Generator generator,
              double epsilon = kLayerNormEpsilon);

  /// Pools x_BTd [B, T, d] -> [B, d].
  at::Tensor forward(const at::Tensor& x_BTd);

  at::Tensor probe;  ///< Learned query [1, 1, d].
  Attention attention{nullptr};
  torch::nn::LayerNorm norm{nullptr};
  Mlp mlp{nullptr};
};
TORCH_MODULE(MapHead);

/// Parts of an EncoderBlock.
struct EncoderBlockOptions {
  AttentionOptions attention;
  MlpOptions mlp;                      ///< `mlp.dropout` is also that of attention's outputs.
  double epsilon = kLayerNormEpsilon;  ///< Epsilon of both norms.
  double drop_path = 0.0;              ///< Rate of stochastic depth in training.
  std::optional<double> layer_scale;   ///< Initial LayerScale; unset means none.
  std::optional<MoELayerOptions> moe;  ///< Unset means a dense MLP.
};

/// A pre-norm transformer block: x + s1 attention(norm1(x)), then x + s2 mlp(norm2(x)). The MLP is
/// dense or a mixture of experts over all tokens of the batch; s1, s2 [d] are LayerScale (Touvron
/// et al., arXiv:2103.17239, eq. 4) or 1. In training, stochastic depth (Huang et al.,
/// arXiv:1603.09382) leaves either sum's second term out of a row of the batch with probability p,
/// and divides it by 1 - p otherwise. A row is an image or, in an ensemble of M members, a member's
/// view of an image: image 0 of members 0..M-1, image 1, ... The experts' tokens are then ordered
/// by image, position and member.
class EncoderBlockImpl : public torch::nn::Module, public DataParallelModule {
 public:
  /// Draws the initial values from `generator`.
  EncoderBlockImpl(EncoderBlockOptions options, at::Generator generator);

  /// Tokens, and the routing where the block has experts.
  struct Output {
    at::Tensor x_BTd;
    std::optional<MoEOutput> moe;
  };
  /// Runs the block on x_BTd [B, T, d]. Router noise and, in training, dropout and stochastic depth
  /// are drawn from `random`; without it there is none, except by RouterOptions::evaluation_seed.
  Output forward(const at::Tensor& x_BTd, const at::Generator& random = {});

  torch::nn::LayerNorm norm1{nullptr}, norm2{nullptr};
  Attention attention{nullptr};
  Mlp mlp{nullptr};           ///< Null in a block with experts.
  MoELayer moe{nullptr};      ///< Null in a dense block.
  at::Tensor scale1, scale2;  ///< LayerScale [d] of attention and MLP; undefined without it.

 private:
  at::Tensor drop_path(const at::Tensor& x_BTd, const at::Generator& random) const;

  double dropout_, drop_path_;
};
TORCH_MODULE(EncoderBlock);

/// Reorders [B M, T, d] into the rows of the experts' order, [B T M, d], and back.
at::Tensor to_member_order(const at::Tensor& x_BTd, int64_t members);
/// Reorders rows [B T M, d] back to tensors of this shape.
at::Tensor from_member_order(const at::Tensor& x_Td, int64_t members, at::IntArrayRef shape);

/// Activation checkpointing: returns block->forward(x_BTd, random) but keeps only x_BTd for
/// backward, which computes the block again with the same random draws and under the same autocast,
/// so that the gradients have the same bits. Without gradients it is the plain forward pass.
EncoderBlockImpl::Output forward_checkpointed(const std::shared_ptr<EncoderBlockImpl>& block,
                                              const at::Tensor& x_BTd, const at::Generator& random);

}  // namespace moesaic::nn
