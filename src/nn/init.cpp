// SPDX-License-Identifier: Apache-2.0
#include "moesaic/nn/init.h"

#include <ATen/CPUGeneratorImpl.h>
#include <torch/torch.h>

#include <cmath>

namespace moesaic::nn {

at::Generator make_generator(uint64_t seed, at::Device device) {
  if (device.is_cpu()) return at::make_generator<at::CPUGeneratorImpl>(seed);
  at::Generator generator = at::globalContext()
                                .getAcceleratorHooksInterface(device.type())
                                .getNewGenerator(device.index());
  generator.set_current_seed(seed);
  return generator;
}

void xavier_uniform(at::Tensor& weight, at::Generator generator) {
  const torch::NoGradGuard no_grad;
  const auto fans = static_cast<double>(weight.size(-1) + weight.size(-2));
  const double bound = std::sqrt(6.0 / fans);
  weight.uniform_(-bound, bound, generator);
}

void lecun_normal(at::Tensor& weight, int64_t fan_in, at::Generator generator) {
  const torch::NoGradGuard no_grad;
  weight.normal_(0.0, 1.0 / std::sqrt(static_cast<double>(fan_in)), generator);
}

}  // namespace moesaic::nn
