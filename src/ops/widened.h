// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

namespace moesaic::ops {

/// Returns bfloat16 and float16 as float32, anything else as it is: routing decisions and losses
/// are computed in at least float32. Autograd casts the gradient back.
inline at::Tensor widened(const at::Tensor& tensor) {
  const auto type = tensor.scalar_type();
  return type == at::kBFloat16 || type == at::kHalf ? tensor.to(at::kFloat) : tensor;
}

}  // namespace moesaic::ops
