// SPDX-License-Identifier: Apache-2.0
#include "moesaic/nn/attention.h"

#include <torch/torch.h>

#include "moesaic/nn/linear.h"

namespace moesaic::nn {

SelfAttentionImpl::SelfAttentionImpl(int64_t width, int64_t heads, at::Generator generator)
    : heads_(heads) {
  qkv = register_module("qkv", make_linear(width, 3 * width, generator));
  out = register_module("out", make_linear(width, width, generator));
}

at::Tensor SelfAttentionImpl::forward(const at::Tensor& x_BTd) {
  const int64_t batch = x_BTd.size(0), tokens = x_BTd.size(1), width = x_BTd.size(2);
  const at::Tensor qkv_3BHTc =
      qkv->forward(x_BTd).view({batch, tokens, 3, heads_, width / heads_}).permute({2, 0, 3, 1, 4});
  const at::Tensor mixed_BHTc =
      at::scaled_dot_product_attention(qkv_3BHTc[0], qkv_3BHTc[1], qkv_3BHTc[2]);
  return out->forward(mixed_BHTc.transpose(1, 2).reshape({batch, tokens, width}));
}

}  // namespace moesaic::nn
