// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/pimpl.h>

#include "moesaic/nn/attention.h"
#include "moesaic/nn/mlp.h"

namespace moesaic::nn {

/// Multi-head attention pooling: a is the attention of the learned `probe` over the tokens, the
/// output is a + mlp(norm(a)).
class MapHeadImpl : public torch::nn::Module {
 public:
  MapHeadImpl(AttentionOptions options, int64_t hidden, at::Generator generator);

  /// Pools x_BTd [B, T, d] -> [B, d].
  at::Tensor forward(const at::Tensor& x_BTd);

  at::Tensor probe;  ///< Learned query [1, 1, d].
  Attention attention{nullptr};
  torch::nn::LayerNorm norm{nullptr};
  Mlp mlp{nullptr};
};
TORCH_MODULE(MapHead);

}  // namespace moesaic::nn
