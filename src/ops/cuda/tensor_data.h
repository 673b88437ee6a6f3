// SPDX-License-Identifier: Apache-2.0
// Conversion of tensors to the pointers and types of kernels, and how many numbers of a row one
// memory access moves. This header needs no GPU: tests run
// the same code on the host.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <initializer_list>
#include <type_traits>

#include "../kernels/number.h"
#include "../widened.h"
#include "moesaic/base/error.h"

namespace moesaic::ops::kernels {

/// Calls body(integral_constant) with the count of numbers in 16 bytes if rows of `width` and all
/// addresses are aligned (null is), else with 1.
template <class T, class Body>
void with_pieces(int64_t width, std::initializer_list<const void*> addresses, const Body& body) {
  bool wide = width % kWide<T> == 0;
  for (const void* address : addresses) {
    wide = wide && reinterpret_cast<uintptr_t>(address) % 16 == 0;
  }
  if (wide) {
    body(std::integral_constant<int, kWide<T>>());
  } else {
    body(std::integral_constant<int, 1>());
  }
}

}  // namespace moesaic::ops::kernels

namespace moesaic::ops {

template <class T>
struct TypeTag {
  using type = T;
};

/// Calls body(TypeTag<T>()) for the kernels' element type of a tensor.
template <class Body>
void with_logit_type(const at::Tensor& tensor, const Body& body) {
  if (tensor.scalar_type() == at::kDouble) return body(TypeTag<double>());
  body(TypeTag<float>());
}
template <class Body>
void with_row_type(const at::Tensor& tensor, const Body& body) {
  if (tensor.scalar_type() == at::kBFloat16) return body(TypeTag<kernels::BFloat16>());
  if (tensor.scalar_type() == at::kHalf) return body(TypeTag<kernels::Half>());
  with_logit_type(tensor, body);
}

template <class T>
const T* in(const at::Tensor& tensor) {
  return static_cast<const T*>(tensor.const_data_ptr());
}
template <class T>
T* out(const at::Tensor& tensor) {
  return static_cast<T*>(tensor.mutable_data_ptr());
}

/// Returns the type in which numbers of this type are summed.
inline at::ScalarType sum_type(at::ScalarType type) {
  return is_half_wide(type) ? at::kFloat : type;
}

}  // namespace moesaic::ops
