// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

namespace moesaic::ops {

/// Returns an uninitialised tensor. Outputs and gradients of all experts' weights are new memory at
/// each step, and with the C library's defaults their page faults take longer than the arithmetic.
/// So large tensors reuse cached blocks, which hold at most a quarter of the memory and are freed
/// when calls stop using them.
at::Tensor empty_large(at::IntArrayRef sizes, const at::TensorOptions& options);

}  // namespace moesaic::ops
