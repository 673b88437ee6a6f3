// SPDX-License-Identifier: Apache-2.0
#include "moesaic/nn/map_head.h"

#include <torch/torch.h>

#include "moesaic/nn/init.h"
#include "moesaic/nn/layer_norm.h"

namespace moesaic::nn {

MapHeadImpl::MapHeadImpl(AttentionOptions options, int64_t hidden, at::Generator generator) {
  probe = register_parameter("probe", torch::empty({1, 1, options.width}));
  xavier_uniform(probe, generator);
  attention = register_module("attention", Attention(options, generator));
  norm = register_module("norm", make_layer_norm(options.width));
  mlp = register_module("mlp", Mlp(options.width, hidden, generator));
}

at::Tensor MapHeadImpl::forward(const at::Tensor& x_BTd) {
  const at::Tensor pooled = attention->attend(probe.expand({x_BTd.size(0), -1, -1}), x_BTd);
  return (pooled + mlp->forward(norm->forward(pooled))).select(1, 0);
}

}  // namespace moesaic::nn
