// SPDX-License-Identifier: Apache-2.0
// Conversion of tensors to the pointers and types of kernels, and how many numbers of a row one
// memory access moves. This header needs no GPU: tests run the same code on the host.
#pragma once

#include <ATen/core/Tensor.h>

#include <initializer_list>
#include <type_traits>

#include "../check.h"
#include "../kernels/number.h"

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

/// Calls body(TypeTag<T>(), integral_constant) for rows of several tensors: the first one's type,
/// and the count of numbers in 16 bytes if its rows and all addresses are aligned, else 1. Tensors
/// may be undefined.
template <class Body>
void with_rows(std::initializer_list<at::Tensor> tensors, const Body& body) {
  with_row_type(*tensors.begin(), [&](auto tag) {
    constexpr int kCount = kernels::kWide<typename decltype(tag)::type>;
    bool wide = tensors.begin()->size(1) % kCount == 0;
    for (const at::Tensor& tensor : tensors) {
      if (!tensor.defined()) continue;
      wide = wide && reinterpret_cast<uintptr_t>(tensor.const_data_ptr()) % 16 == 0;
    }
    if (wide) {
      body(tag, std::integral_constant<int, kCount>());
    } else {
      body(tag, std::integral_constant<int, 1>());
    }
  });
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
