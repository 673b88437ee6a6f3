// SPDX-License-Identifier: Apache-2.0
// Initial values. The generator is always the caller's, so that a seed gives the same network
// whatever ran before.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>

namespace moesaic::nn {

/// Returns a generator of its own for the device, seeded.
at::Generator make_generator(uint64_t seed, at::Device device = at::kCPU);

/// Returns a seed and advances the generator; for that of a GPU, by its seed and offset, without
/// waiting for the device.
uint64_t next_seed(at::Generator random);

/// Fills `weight` in place, uniform on +-sqrt(6 / (fan_in + fan_out)) (Xavier). The fans are the
/// last two dimensions.
void xavier_uniform(const at::Tensor& weight, at::Generator generator);
/// Fills `weight` in place, uniform on +-sqrt(6 / fans), where `fans` is fan_in + fan_out.
void xavier_uniform(const at::Tensor& weight, int64_t fans, at::Generator generator);

/// Fills `weight` in place with standard deviation 1 / sqrt(fan_in) (LeCun), normal but cut off at
/// twice the standard deviation of the uncut distribution.
void lecun_normal(const at::Tensor& weight, int64_t fan_in, at::Generator generator);

/// Fills `bias` in place with the V-MoE reference's start of an MLP's biases, N(0, 1e-6 ^ 2).
void mlp_bias_normal(const at::Tensor& bias, at::Generator generator);

}  // namespace moesaic::nn
