// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include "moesaic/nn/shares_batch.h"

namespace moesaic::nn {

/// Sets each value to 0 with probability `rate`, 0 <= rate < 1, and divides it by 1 - rate
/// otherwise. Draws from `random`; returns x where `random` is undefined or the rate is 0. Where
/// processes share a batch, x [B, ...] is that of this one, and on the CPU what falls is what would
/// of the whole batch. On a GPU each process draws other masks than one alone would.
at::Tensor dropout(const at::Tensor& x, double rate, const at::Generator& random,
                   const BatchShare& share = {});

}  // namespace moesaic::nn
