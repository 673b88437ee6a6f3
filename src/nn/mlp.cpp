// SPDX-License-Identifier: Apache-2.0
#include "moesaic/nn/mlp.h"

#include <torch/torch.h>

#include "moesaic/nn/dropout.h"
#include "moesaic/nn/init.h"
#include "moesaic/nn/linear.h"
#include "moesaic/ops/grouped_mlp.h"
#include "moesaic/ops/routing.h"

namespace moesaic::nn {

MlpImpl::MlpImpl(int64_t width, int64_t hidden, at::Generator generator, double dropout)
    : dropout_(dropout) {
  fc1 = register_module("fc1", make_linear(width, hidden, generator));
  fc2 = register_module("fc2", make_linear(hidden, width, generator));
  for (const auto& layer : {fc1, fc2}) mlp_bias_normal(layer->bias, generator);
}

at::Tensor MlpImpl::forward(const at::Tensor& x, const at::Generator& random) {
  if (is_training() && random.defined() && dropout_ > 0.0) {
    const at::Tensor hidden = dropout(at::gelu(fc1->forward(x), "tanh"), dropout_, random);
    return dropout(fc2->forward(hidden), dropout_, random);
  }
  // One expert that takes every row: the grouped kernel keeps the hidden panel in cache and fuses
  // bias and activation.
  const at::Tensor rows_Td = x.reshape({-1, x.size(-1)});
  const at::Tensor offsets = offsets_of_one_expert(rows_Td.size(0), x.device());
  const ExpertWeights weights{fc1->weight.t().unsqueeze(0), fc1->bias.unsqueeze(0),
                              fc2->weight.t().unsqueeze(0), fc2->bias.unsqueeze(0)};
  return grouped_mlp(rows_Td, offsets, weights, Activation::gelu_tanh).view_as(x);
}

}  // namespace moesaic::nn
