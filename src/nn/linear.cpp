// SPDX-License-Identifier: Apache-2.0
#include "moesaic/nn/linear.h"

#include <torch/torch.h>

#include "moesaic/nn/init.h"

namespace moesaic::nn {

torch::nn::Linear make_linear(int64_t in, int64_t out, const at::Generator& generator,
                              int64_t parts) {
  torch::nn::Linear linear(in, out);
  const torch::NoGradGuard no_grad;
  for (const at::Tensor& part : linear->weight.chunk(parts)) xavier_uniform(part, generator);
  linear->bias.zero_();
  return linear;
}

}  // namespace moesaic::nn
