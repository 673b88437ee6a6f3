// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

namespace moesaic::nn {

/// Each number is 0 with probability `rate`, 0 <= rate < 1, and divided by 1 - rate otherwise.
/// Draws from `random`; gives x back where that is undefined or the rate is 0.
at::Tensor dropout(const at::Tensor& x, double rate, const at::Generator& random);

}  // namespace moesaic::nn
