// SPDX-License-Identifier: Apache-2.0
#include "moesaic/nn/attention.h"

#include <torch/torch.h>

#include <cmath>
#include <tuple>

#include "moesaic/nn/dropout.h"
#include "moesaic/nn/layer_norm.h"
#include "moesaic/nn/linear.h"
#include "moesaic/ops/autocast.h"

namespace moesaic::nn {
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

}  // namespace moesaic::nn
