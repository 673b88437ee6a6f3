// SPDX-License-Identifier: Apache-2.0
#include "moesaic/nn/mlp.h"

#include <torch/torch.h>

#include "moesaic/nn/dropout.h"
#include "moesaic/nn/init.h"
#include "moesaic/nn/linear.h"
#include "moesaic/ops/grouped_mlp.h"

namespace moesaic::nn {

MlpImpl::MlpImpl(int64_t width, int64_t hidden, at::Generator generator, double dropout)
    : dropout_(dropout) {
  fc1 = register_module("fc1", make_linear(width, hidden, generator));
  fc2 = register_module("fc2", make_linear(hidden, width, generator));
  for (const auto& layer : {fc1, fc2}) mlp_bias_normal(layer->bias, generator);
}

at::Tensor MlpImpl::forward(const at::Tensor& x, const at::Generator& random) {
  const bool drops = is_training() && random.defined() && dropout_ > 0.0;
  const auto dropped = [&](const at::Tensor& y) {
    return drops ? dropout(y, dropout_, random) : y;
  };
  if (drops || x.is_cuda()) {
    return dropped(fc2->forward(dropped(at::gelu(fc1->forward(x), "tanh"))));
  }
  // One expert that takes every row: the CPU's grouped kernel keeps the hidden panel in cache and
  // fuses bias and activation.
  const at::Tensor rows_Td = x.reshape({-1, x.size(-1)});
  const at::Tensor offsets =
      torch::tensor({int64_t{0}, rows_Td.size(0)}, at::device(x.device()).dtype(at::kInt));
  const ExpertWeights weights{fc1->weight.t().unsqueeze(0), fc1->bias.unsqueeze(0),
                              fc2->weight.t().unsqueeze(0), fc2->bias.unsqueeze(0)};
  return grouped_mlp(rows_Td, offsets, weights, Activation::gelu_tanh).view_as(x);
}

}  // namespace moesaic::nn
