// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

namespace moesaic::ops {

/// An uninitialised tensor. Outputs and gradients of all experts' weights are fresh memory at each
/// step, and with the C library's defaults their first touch takes longer than the arithmetic. So
/// large ones come from blocks that were freed before and are kept, at most a quarter of the memory
/// and only while calls go on using them.
at::Tensor empty_large(at::IntArrayRef sizes, const at::TensorOptions& options);

}  // namespace moesaic::ops
