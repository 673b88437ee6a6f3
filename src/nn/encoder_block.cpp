// SPDX-License-Identifier: Apache-2.0
#include "moesaic/nn/encoder_block.h"

#include <torch/torch.h>

#include <cmath>
#include <tuple>

#include "moesaic/nn/init.h"
#include "moesaic/nn/shares_batch.h"
#include "moesaic/ops/autocast.h"

namespace moesaic::nn {

torch::nn::LayerNorm make_layer_norm(int64_t width) {
  return torch::nn::LayerNorm(torch::nn::LayerNormOptions({width}).eps(kLayerNormEpsilon));
}

torch::nn::Linear make_linear(int64_t in, int64_t out, const at::Generator& generator,
                              int64_t parts) {
  torch::nn::Linear linear(in, out);
  const torch::NoGradGuard no_grad;
  for (const at::Tensor& part : linear->weight.chunk(parts)) xavier_uniform(part, generator);
  linear->bias.zero_();
  return linear;
}

MlpImpl::MlpImpl(int64_t width, int64_t hidden, at::Generator generator, double dropout)
    : dropout_(dropout) {
  fc1 = register_module("fc1", make_linear(width, hidden, generator));
  fc2 = register_module("fc2", make_linear(hidden, width, generator));
  for (const auto& layer : {fc1, fc2}) mlp_bias_normal(layer->bias, generator);
}

at::Tensor MlpImpl::forward(const at::Tensor& x, const at::Generator& random) {
  const bool drops = is_training() && random.defined() && dropout_ > 0.0;
  const auto dropped = [&](const at::Tensor& y) {
    return drops ? dropout(y, dropout_, random, share()) : y;
  };
  // Linear's forward() would add the bias in a pass of its own.
  const at::Tensor hidden = at::gelu(at::linear(x, fc1->weight, fc1->bias), "tanh");
  return dropped(at::linear(dropped(hidden), fc2->weight, fc2->bias));
}

namespace {

/// Whether LibTorch's gradient of attention takes longer than that in float32 with its casts: in
/// two bytes it is up to five times slower on a CPU.
bool is_slow_in_training(const at::Tensor& query) {
  return query.is_cpu() && query.element_size() == 2 && query.requires_grad();
}

/// Returns softmax(query key^T / sqrt(c)) value. On the meta device LibTorch would make the weights
/// of all pairs of tokens, which it does nowhere else.
at::Tensor attention(const at::Tensor& query_BHQc, const at::Tensor& key_BHTc,
                     const at::Tensor& value_BHTc) {
  if (is_slow_in_training(query_BHQc)) {
    const NoAutocast beneath;
    return at::scaled_dot_product_attention(query_BHQc.to(at::kFloat), key_BHTc.to(at::kFloat),
                                            value_BHTc.to(at::kFloat))
        .to(query_BHQc.scalar_type());
  }
  if (!query_BHQc.is_meta()) {
    return at::scaled_dot_product_attention(query_BHQc, key_BHTc, value_BHTc);
  }
  return std::get<0>(
      at::_scaled_dot_product_flash_attention_for_cpu(query_BHQc, key_BHTc, value_BHTc));
}

}  // namespace

HeadNormImpl::HeadNormImpl(int64_t head_width) {
  weight = register_parameter("weight", torch::ones({head_width}));
}

at::Tensor HeadNormImpl::forward(const at::Tensor& x) const {
  return at::layer_norm(x, {weight.size(0)}, weight, {}, kLayerNormEpsilon);
}

AttentionImpl::AttentionImpl(AttentionOptions options, at::Generator generator)
    : options_(options) {
  const int64_t width = options.width;
  qkv = register_module("qkv", make_linear(width, 3 * width, generator, /*parts=*/3));
  out = register_module("out", make_linear(width, width, generator));
  if (!options.qk_norm) return;
  query_norm = register_module("query_norm", HeadNorm(width / options.heads));
  key_norm = register_module("key_norm", HeadNorm(width / options.heads));
}

at::Tensor AttentionImpl::mix(at::Tensor query_BHQc, at::Tensor key_BHTc,
                              const at::Tensor& value_BHTc, const at::Generator& random) {
  if (options_.qk_norm) {
    query_BHQc = query_norm->forward(query_BHQc);
    key_BHTc = key_norm->forward(key_BHTc);
  }
  at::Tensor mixed_BHQc;
  if (is_training() && random.defined() && options_.dropout > 0.0) {
    const double scale = 1.0 / std::sqrt(static_cast<double>(query_BHQc.size(-1)));
    const at::Tensor weights = at::matmul(query_BHQc * scale, key_BHTc.transpose(-2, -1));
    mixed_BHQc =
        at::matmul(dropout(weights.softmax(-1), options_.dropout, random, share()), value_BHTc);
  } else {
    mixed_BHQc = attention(query_BHQc, key_BHTc, value_BHTc);
  }
  return at::linear(mixed_BHQc.transpose(1, 2).flatten(2), out->weight, out->bias);
}

at::Tensor AttentionImpl::heads_of(const at::Tensor& x_BTd) const {
  return x_BTd.unflatten(2, {options_.heads, -1}).transpose(1, 2);
}

at::Tensor AttentionImpl::forward(const at::Tensor& x_BTd, const at::Generator& random) {
  const auto qkv_BTd = at::linear(x_BTd, qkv->weight, qkv->bias).chunk(3, 2);
  return mix(heads_of(qkv_BTd[0]), heads_of(qkv_BTd[1]), heads_of(qkv_BTd[2]), random);
}

at::Tensor AttentionImpl::attend(const at::Tensor& query_BQd, const at::Tensor& x_BTd,
                                 const at::Generator& random) {
  const int64_t width = x_BTd.size(2);
  const at::Tensor query =
      at::linear(query_BQd, qkv->weight.narrow(0, 0, width), qkv->bias.narrow(0, 0, width));
  const auto kv_BTd = at::linear(x_BTd, qkv->weight.narrow(0, width, 2 * width),
                                 qkv->bias.narrow(0, width, 2 * width))
                          .chunk(2, 2);
  return mix(heads_of(query), heads_of(kv_BTd[0]), heads_of(kv_BTd[1]), random);
}

MapHeadImpl::MapHeadImpl(AttentionOptions options, int64_t hidden, at::Generator generator) {
  probe = register_parameter("probe", torch::empty({1, 1, options.width}));
  xavier_uniform(probe, generator);
  attention = register_module("attention", Attention(options, generator));
  norm = register_module("norm", make_layer_norm(options.width));
  mlp = register_module("mlp", Mlp(options.width, hidden, generator));
}

at::Tensor MapHeadImpl::forward(const at::Tensor& x_BTd) {
  // Recording must not see the batch's size, see script::make_traced().
  const at::Tensor pooled = attention->attend(probe.expand_as(x_BTd.narrow(1, 0, 1)), x_BTd);
  return (pooled + mlp->forward(norm->forward(pooled))).select(1, 0);
}

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
