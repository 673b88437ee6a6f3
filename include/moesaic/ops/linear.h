// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

namespace moesaic {

/// y = x W^T + b, with gradients; x [..., d], W [o, d], b [o]. As at::linear; on a CPU many rows of
/// float32 or float64 go through the experts' kernels, which leave less of the processor idle.
at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias);

}  // namespace moesaic
