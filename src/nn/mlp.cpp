// SPDX-License-Identifier: Apache-2.0
#include "moesaic/nn/mlp.h"

#include <torch/torch.h>

#include "moesaic/nn/dropout.h"
#include "moesaic/nn/init.h"
#include "moesaic/nn/linear.h"

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
    return drops ? dropout(y, dropout_, random, share()) : y;
  };
  // Linear's forward() would add the bias in a pass of its own.
  const at::Tensor hidden = at::gelu(at::linear(x, fc1->weight, fc1->bias), "tanh");
  return dropped(at::linear(dropped(hidden), fc2->weight, fc2->bias));
}

}  // namespace moesaic::nn
