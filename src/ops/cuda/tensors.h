// SPDX-License-Identifier: Apache-2.0
// Between tensors and kernels that know pointers only.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "../kernels/number.h"
#include "moesaic/base/error.h"

namespace moesaic::ops {

/// The current stream of a tensor's device, which is the current device as long as this lives.
class DeviceScope {
 public:
  explicit DeviceScope(const at::Tensor& tensor)
      : guard_(tensor.device()), stream_(c10::cuda::getCurrentCUDAStream()) {}
  ~DeviceScope() = default;
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

  cudaStream_t stream() const { return stream_.stream(); }

 private:
  c10::cuda::CUDAGuard guard_;
  c10::cuda::CUDAStream stream_;
};

template <class T>
struct TypeTag {
  using type = T;
};

/// Calls body(TypeTag<T>()) for the kernels' type of a tensor's numbers.
template <class Body>
void with_logit_type(const at::Tensor& tensor, const Body& body) {
  if (tensor.scalar_type() == at::kDouble) return body(TypeTag<double>());
  body(TypeTag<float>());
}
template <class Body>
void with_row_type(const at::Tensor& tensor, const Body& body) {
  if (tensor.scalar_type() == at::kBFloat16) return body(TypeTag<kernels::BFloat16>());
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

/// What sums of numbers of this type are kept in.
inline at::ScalarType sum_type(at::ScalarType type) {
  return type == at::kBFloat16 ? at::kFloat : type;
}

}  // namespace moesaic::ops
