// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

namespace moesaic::ops {

/// Returns whether numbers of a type have two bytes.
inline bool is_half_wide(at::ScalarType type) {
  return type == at::kBFloat16 || type == at::kHalf;
}

/// Returns bfloat16 and float16 as float32, anything else as it is: routing decisions and losses
/// are computed in at least float32. Autograd casts the gradient back.
inline at::Tensor widened(const at::Tensor& tensor) {
  return is_half_wide(tensor.scalar_type()) ? tensor.to(at::kFloat) : tensor;
}

}  // namespace moesaic::ops
