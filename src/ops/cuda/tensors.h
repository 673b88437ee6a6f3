// SPDX-License-Identifier: Apache-2.0
// Device and stream of an operator on a GPU.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "start.h"
#include "tensor_data.h"

namespace moesaic::ops {

/// Current stream of a tensor's device; makes that device current while the object lives.
class DeviceScope {
 public:
  explicit DeviceScope(const at::Tensor& tensor)
      : guard_(tensor.device()), stream_(c10::cuda::getCurrentCUDAStream()) {}
  ~DeviceScope() = default;
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

  cudaStream_t stream() const { return stream_.stream(); }

  /// Starts a kernel on the stream; see start.h.
  template <int Threads, class Kernel>
  void start(const Kernel& kernel, int64_t blocks, int threads, int64_t shared_bytes) const {
    kernels::start<Threads>(kernel, blocks, threads, shared_bytes, stream());
  }

 private:
  c10::cuda::CUDAGuard guard_;
  c10::cuda::CUDAStream stream_;
};

}  // namespace moesaic::ops
