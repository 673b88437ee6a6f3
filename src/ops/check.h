// SPDX-License-Identifier: Apache-2.0
// Argument checks shared by the operators. They run on every device and on the meta device, so they look at
// shapes and dtypes only.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <initializer_list>

namespace moesaic::ops {

/// Throws Error "op: NAME must be [..] DTYPE, found ..." unless the shape matches; -1 matches any size.
void check_shape(const char* op, const char* name, const at::Tensor& tensor,
                 std::initializer_list<int64_t> shape);
void check_floating(const char* op, const char* name, const at::Tensor& tensor);
void check_index(const char* op, const char* name, const at::Tensor& tensor);
void check_same_dtype(const char* op, const char* name, const at::Tensor& tensor,
                      const at::Tensor& like);

}  // namespace moesaic::ops
