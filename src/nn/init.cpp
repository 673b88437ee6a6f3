// SPDX-License-Identifier: Apache-2.0
#include "moesaic/nn/init.h"

#include <ATen/CPUGeneratorImpl.h>
#include <torch/torch.h>

#include <cmath>
#include <mutex>
#include <numbers>

#include "moesaic/base/random.h"

namespace moesaic::nn {

at::Generator make_generator(uint64_t seed, at::Device device) {
  if (device.is_cpu() || device.is_meta()) return at::make_generator<at::CPUGeneratorImpl>(seed);
  at::Generator generator = at::globalContext()
                                .getAcceleratorHooksInterface(device.type())
                                .getNewGenerator(device.index());
  generator.set_current_seed(seed);
  return generator;
}

uint64_t next_seed(at::Generator random) {
  if (!random.device().is_cuda()) {
    const at::Tensor drawn = at::empty({1}, at::kLong).random_(random);
    return mix64(static_cast<uint64_t>(drawn.item<int64_t>()));
  }
  constexpr uint64_t kNextOffset = 4;  // Offsets are multiples of 4.
  const std::lock_guard lock(random.mutex());
  const uint64_t offset = random.get_offset();
  random.set_offset(offset + kNextOffset);
  return mix64(mix64(random.current_seed()) + offset);
}

void xavier_uniform(const at::Tensor& weight, at::Generator generator) {
  xavier_uniform(weight, weight.size(-1) + weight.size(-2), std::move(generator));
}

void xavier_uniform(const at::Tensor& weight, int64_t fans, at::Generator generator) {
  const torch::NoGradGuard no_grad;
  const double bound = std::sqrt(6.0 / static_cast<double>(fans));
  weight.uniform_(-bound, bound, std::move(generator));
}

void lecun_normal(const at::Tensor& weight, int64_t fan_in, at::Generator generator) {
  constexpr double kCut = 2.0;                            // in deviations of the uncut distribution
  constexpr double kDeviationOfCut = 0.8796256610342398;  // after the cut, of one that was 1
  const torch::NoGradGuard no_grad;
  const double deviation = 1.0 / (std::sqrt(static_cast<double>(fan_in)) * kDeviationOfCut);
  // By the inverse of the distribution function, so that a number takes one draw.
  const double end = std::erf(kCut / std::numbers::sqrt2);
  weight.uniform_(-end, end, std::move(generator)).erfinv_().mul_(deviation * std::numbers::sqrt2);
  weight.clamp_(-kCut * deviation, kCut * deviation);
}

void mlp_bias_normal(const at::Tensor& bias, at::Generator generator) {
  const torch::NoGradGuard no_grad;
  bias.normal_(0.0, 1e-6, std::move(generator));
}

}  // namespace moesaic::nn
