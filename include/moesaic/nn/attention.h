// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include "moesaic/nn/shares_batch.h"

namespace moesaic::nn {

struct AttentionOptions {
  int64_t width = 0;     ///< Width d of a token.
  int64_t heads = 0;     ///< Number of heads, each of width c = d / heads.
  bool qk_norm = false;  ///< Normalises the queries and keys of every head.
  double dropout = 0.0;  ///< Dropout rate of the attention weights.
};

/// LayerNorm over the width of a head, with a scale (`weight` [c]) and without a bias.
class HeadNormImpl : public torch::nn::Module {
 public:
  explicit HeadNormImpl(int64_t head_width);

  /// Normalises x [..., c] -> [..., c].
  at::Tensor forward(const at::Tensor& x) const;

  at::Tensor weight;
};
TORCH_MODULE(HeadNorm);

/// Multi-head attention with biases: softmax(q k^T / sqrt(c)) v for each head, then `out`. Query,
/// key and value share one weight (`qkv.weight` [3 d, d]).
class AttentionImpl : public torch::nn::Module, public SharesBatch {
 public:
  AttentionImpl(AttentionOptions options, at::Generator generator);

  /// Self-attention: x_BTd [B, T, d] -> [B, T, d]. In training, dropout is drawn from `random`;
  /// there is no dropout where `random` is undefined.
  at::Tensor forward(const at::Tensor& x_BTd, const at::Generator& random = {});

  /// Cross-attention: queries of query_BQd [B, Q, d] attend to x_BTd [B, T, d] -> [B, Q, d].
  at::Tensor attend(const at::Tensor& query_BQd, const at::Tensor& x_BTd,
                    const at::Generator& random = {});

  const AttentionOptions& options() const { return options_; }

  torch::nn::Linear qkv{nullptr}, out{nullptr};
  HeadNorm query_norm{nullptr}, key_norm{nullptr};  ///< Null without qk_norm.

 private:
  /// Views [B, T, d] as [B, H, T, c].
  at::Tensor heads_of(const at::Tensor& x_BTd) const;
  at::Tensor mix(at::Tensor query_BHQc, at::Tensor key_BHTc, const at::Tensor& value_BHTc,
                 const at::Generator& random);

  AttentionOptions options_;
};
TORCH_MODULE(Attention);

}  // namespace moesaic::nn
