// SPDX-License-Identifier: Apache-2.0
// Checks of an operator's tensors, which hold on every device, on the meta device and for sizes
// that are symbols of a compiler.
#pragma once

#include <ATen/core/Tensor.h>

#include <initializer_list>

namespace moesaic::ops {

/// Throws Error "op: NAME must be [..] DTYPE, found ..." unless the shape matches; -1 matches any
/// size.
void check_shape(const char* op, const char* name, const at::Tensor& tensor,
                 std::initializer_list<c10::SymInt> shape);
/// Throws unless the dtype is float32 or float64.
void check_floating(const char* op, const char* name, const at::Tensor& tensor);
/// Throws unless the dtype is that of `like`.
void check_same_dtype(const char* op, const char* name, const at::Tensor& tensor,
                      const at::Tensor& like);

}  // namespace moesaic::ops
