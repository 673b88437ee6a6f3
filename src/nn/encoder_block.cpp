// SPDX-License-Identifier: Apache-2.0
#include "moesaic/nn/encoder_block.h"

#include <torch/torch.h>

#include "moesaic/nn/dropout.h"
#include "moesaic/nn/layer_norm.h"

namespace moesaic::nn {

EncoderBlockImpl::EncoderBlockImpl(EncoderBlockOptions options, at::Generator generator)
    : dropout_(options.dropout) {
  const int64_t width = options.attention.width;
  norm1 = register_module("norm1", make_layer_norm(width));
  attention = register_module("attention", Attention(options.attention, generator));
  norm2 = register_module("norm2", make_layer_norm(width));
  if (options.moe) {
    moe = register_module("moe", MoELayer(*options.moe, generator));
  } else {
    mlp = register_module("mlp", Mlp(width, options.hidden, generator, options.dropout));
  }
}

at::Tensor EncoderBlockImpl::mix_tokens(const at::Tensor& x_BTd, const at::Generator& random) {
  const at::Tensor mixed = attention->forward(norm1->forward(x_BTd), random);
  return x_BTd + dropout(mixed, is_training() ? dropout_ : 0.0, random, share());
}

EncoderBlockImpl::Output EncoderBlockImpl::forward(const at::Tensor& x_BTd,
                                                   const at::Generator& random) {
  const at::Tensor mixed = mix_tokens(x_BTd, random);
  const at::Tensor normed = norm2->forward(mixed);
  if (moe.is_empty()) return {mixed + mlp->forward(normed, random), std::nullopt};
  const int64_t members = moe->options().members;
  MoEOutput out = moe->forward(to_member_order(normed, members), random);
  at::Tensor x = mixed + from_member_order(out.y_Td, members, mixed.sizes());
  return {x, std::move(out)};
}

at::Tensor to_member_order(const at::Tensor& x_BTd, int64_t members) {
  const int64_t tokens = x_BTd.size(1), width = x_BTd.size(2);
  if (members == 1) return x_BTd.reshape({-1, width});
  return x_BTd.view({-1, members, tokens, width}).transpose(1, 2).reshape({-1, width});
}

at::Tensor from_member_order(const at::Tensor& x_Td, int64_t members, at::IntArrayRef shape) {
  if (members == 1) return x_Td.view(shape);
  return x_Td.view({-1, shape[1], members, shape[2]}).transpose(1, 2).reshape(shape);
}

}  // namespace moesaic::nn
