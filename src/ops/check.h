// SPDX-License-Identifier: Apache-2.0
// Argument checks shared by the operators. They run on every device and on the meta device, so most
// check shapes and dtypes only; values are checked on the CPU only. Sizes may be symbols of a
// compiler that traces a call: they are compared as such and never taken as numbers.
#pragma once

#include <ATen/core/Tensor.h>

#include <initializer_list>

#include "moesaic/ops/route_options.h"

namespace moesaic::ops {

/// Returns whether numbers of a type have two bytes.
inline bool is_half_wide(at::ScalarType type) {
  return type == at::kBFloat16 || type == at::kHalf;
}

/// Returns bfloat16 and float16 as float32, anything else as it is: routing decisions and losses
/// are computed in at least float32. Autograd casts the gradient back.
inline at::Tensor halves_in_float32(const at::Tensor& tensor) {
  return is_half_wide(tensor.scalar_type()) ? tensor.to(at::kFloat) : tensor;
}

/// Throws Error "op: NAME must be [..] DTYPE, found ..." unless the shape matches; -1 matches any
/// size.
void check_shape(const char* op, const char* name, const at::Tensor& tensor,
                 std::initializer_list<c10::SymInt> shape);
/// Throws unless the dtype is float32 or float64.
void check_floating(const char* op, const char* name, const at::Tensor& tensor);
/// Throws unless the dtype is that of `like`.
void check_same_dtype(const char* op, const char* name, const at::Tensor& tensor,
                      const at::Tensor& like);
/// Throws unless the dtype is float32, float64, bfloat16 or float16.
void check_values(const char* op, const char* name, const at::Tensor& tensor);
/// Throws unless the shape is this one, -1 for any size, the dtype int32 and the device that of
/// `like`.
void check_index(const char* op, const char* name, const at::Tensor& tensor,
                 std::initializer_list<c10::SymInt> shape, const at::Tensor& like);

/// Throws unless gates have the dtype of the rows; beside rows of two bytes they may be float32.
void check_gate(const char* op, const at::Tensor& gate, const at::Tensor& rows);
void check_same_device(const char* op, const char* name, const at::Tensor& tensor,
                       const at::Tensor& like);
/// Throws unless the shape is this one, -1 for any size, and dtype and device are those of `like`.
void check_like(const char* op, const char* name, const at::Tensor& tensor,
                std::initializer_list<c10::SymInt> shape, const at::Tensor& like);
/// Throws unless each of these indices of a routing is [any] int32 on the device of `like`.
void check_indices(const char* op, std::initializer_list<const at::Tensor*> indices,
                   const at::Tensor& like);
/// Returns the number of experts that are computed: those in `kept`, or all where it is empty.
/// Throws unless `kept` is ascending and below `experts`.
c10::SymInt check_kept(const char* op, at::IntArrayRef kept, const c10::SymInt& experts);
/// Throws where a number of rows or tokens is negative.
void check_rows(const char* op, const char* name, const c10::SymInt& rows);
/// Throws unless the factor is finite and not negative, the rounding known, and the multiple from 1
/// to 2^31 - 1.
void check_capacity(const char* op, const CapacityRule& capacity);
/// Throws unless this is the number of an activation.
void check_activation(const char* op, int64_t activation);
/// Throws unless logits are [T, E], halves_in_float32(), with at least one expert.
void check_logits(const char* op, const at::Tensor& logits);
/// Throws where the indices of `rows` rows for each of `tokens` tokens exceed 32 bits.
void check_row_count(const char* op, const c10::SymInt& tokens, const c10::SymInt& rows);

/// Throws unless all indices are in [min, below). Values are checked on the CPU only, since
/// operators take any tensor and a kernel must not read out of bounds.
void check_values_between(const char* op, const char* name, const at::Tensor& index, int64_t min,
                          const c10::SymInt& below);
/// Throws unless offsets begin with 0, ascend, and end with at most `bound`; on the CPU only.
void check_offsets(const char* op, const char* name, const at::Tensor& offsets,
                   const c10::SymInt& bound);

}  // namespace moesaic::ops
