// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

namespace moesaic::nn {

/// Sets each value to 0 with probability `rate`, 0 <= rate < 1, and divides it by 1 - rate
/// otherwise. Draws from `random`; returns x where `random` is undefined or the rate is 0.
at::Tensor dropout(const at::Tensor& x, double rate, const at::Generator& random);

}  // namespace moesaic::nn
