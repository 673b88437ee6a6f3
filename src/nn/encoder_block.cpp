// SPDX-License-Identifier: Apache-2.0
#include "moesaic/nn/encoder_block.h"

#include <torch/torch.h>

namespace moesaic::nn {

torch::nn::LayerNorm make_layer_norm(int64_t width) {
  return torch::nn::LayerNorm(torch::nn::LayerNormOptions({width}).eps(1e-6));
}

EncoderBlockImpl::EncoderBlockImpl(EncoderBlockOptions options, at::Generator generator) {
  norm1 = register_module("norm1", make_layer_norm(options.width));
  attention = register_module("attention", SelfAttention(options.width, options.heads, generator));
  norm2 = register_module("norm2", make_layer_norm(options.width));
  if (options.moe) {
    moe = register_module("moe", MoELayer(*options.moe, generator));
  } else {
    mlp = register_module("mlp", Mlp(options.width, options.hidden, generator));
  }
}

EncoderBlockImpl::Output EncoderBlockImpl::forward(const at::Tensor& x_BTd,
                                                   const at::Generator& random) {
  const at::Tensor mixed = x_BTd + attention->forward(norm1->forward(x_BTd));
  const at::Tensor normed = norm2->forward(mixed);
  if (moe.is_empty()) return {mixed + mlp->forward(normed), std::nullopt};
  MoEOutput out = moe->forward(normed.view({-1, normed.size(-1)}), random);
  at::Tensor x = mixed + out.y_Td.view_as(mixed);
  return {x, std::move(out)};
}

}  // namespace moesaic::nn
