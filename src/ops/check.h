// SPDX-License-Identifier: Apache-2.0
// Argument checks shared by the operators. They run on every device and on the meta device, so they
// look at shapes and dtypes only.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <initializer_list>

namespace moesaic::ops {

/// Throws Error "op: NAME must be [..] DTYPE, found ..." unless the shape matches; -1 matches any
/// size.
void check_shape(const char* op, const char* name, const at::Tensor& tensor,
                 std::initializer_list<int64_t> shape);
void check_floating(const char* op, const char* name, const at::Tensor& tensor);
/// Rows and weights: as above, and bfloat16 where a GPU computes.
void check_rows_type(const char* op, const char* name, const at::Tensor& tensor);
/// Gates have the dtype of the rows, float32 beside bfloat16.
void check_gate_type(const char* op, const at::Tensor& gate, const at::Tensor& rows);
void check_index(const char* op, const char* name, const at::Tensor& tensor);
void check_same_dtype(const char* op, const char* name, const at::Tensor& tensor,
                      const at::Tensor& like);

/// What the operators demand of their arguments; each is called by the operator's kernels and its
/// shape function.
void check_route(const at::Tensor& logits, int64_t k, double capacity_factor, int64_t group_size,
                 at::IntArrayRef kept);
void check_dispatch(const at::Tensor& x, const at::Tensor& offsets, const at::Tensor& token,
                    const at::Tensor& token_offsets, const at::Tensor& token_row);
void check_combine(const at::Tensor& rows, const at::Tensor& gate, const at::Tensor& token_offsets,
                   const at::Tensor& token_row);
void check_grouped_mlp(const at::Tensor& rows, const at::Tensor& offsets, const at::Tensor& w1,
                       const at::Tensor& b1, const at::Tensor& w2, const at::Tensor& b2,
                       int64_t activation);

}  // namespace moesaic::ops
