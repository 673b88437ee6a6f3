// SPDX-License-Identifier: Apache-2.0
#include "moesaic/nn/attention.h"

#include <torch/torch.h>

#include <cmath>
#include <tuple>

#include "moesaic/nn/dropout.h"
#include "moesaic/nn/layer_norm.h"
#include "moesaic/nn/linear.h"

namespace moesaic::nn {
namespace {

/// Returns softmax(query key^T / sqrt(c)) value. On the meta device LibTorch would make the weights
/// of all pairs of tokens, which it does nowhere else.
at::Tensor attention(const at::Tensor& query_BHQc, const at::Tensor& key_BHTc,
                     const at::Tensor& value_BHTc) {
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
    mixed_BHQc = at::matmul(dropout(weights.softmax(-1), options_.dropout, random), value_BHTc);
  } else {
    mixed_BHQc = attention(query_BHQc, key_BHTc, value_BHTc);
  }
  return at::linear(mixed_BHQc.transpose(1, 2).flatten(2), out->weight, out->bias);
}

at::Tensor AttentionImpl::forward(const at::Tensor& x_BTd, const at::Generator& random) {
  const int64_t batch = x_BTd.size(0), tokens = x_BTd.size(1), width = x_BTd.size(2);
  const at::Tensor qkv_3BHTc = at::linear(x_BTd, qkv->weight, qkv->bias)
                                   .view({batch, tokens, 3, options_.heads, width / options_.heads})
                                   .permute({2, 0, 3, 1, 4});
  return mix(qkv_3BHTc[0], qkv_3BHTc[1], qkv_3BHTc[2], random);
}

at::Tensor AttentionImpl::attend(const at::Tensor& query_BQd, const at::Tensor& x_BTd,
                                 const at::Generator& random) {
  const int64_t batch = x_BTd.size(0), width = x_BTd.size(2), head = width / options_.heads;
  const at::Tensor query =
      at::linear(query_BQd, qkv->weight.narrow(0, 0, width), qkv->bias.narrow(0, 0, width))
          .view({batch, query_BQd.size(1), options_.heads, head});
  const at::Tensor kv_2BHTc = at::linear(x_BTd, qkv->weight.narrow(0, width, 2 * width),
                                         qkv->bias.narrow(0, width, 2 * width))
                                  .view({batch, x_BTd.size(1), 2, options_.heads, head})
                                  .permute({2, 0, 3, 1, 4});
  return mix(query.transpose(1, 2), kv_2BHTc[0], kv_2BHTc[1], random);
}

}  // namespace moesaic::nn
