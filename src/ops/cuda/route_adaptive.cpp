// SPDX-License-Identifier: Apache-2.0
#include "route_adaptive_on.h"

#include <torch/library.h>

#include "tensors.h"

namespace moesaic::ops {
namespace {

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor> route_adaptive_cuda(
    const at::Tensor& logits, double threshold, at::IntArrayRef kept) {
  const DeviceScope device(logits);
  const auto out = on_device::route_adaptive_on(device, logits, threshold, kept);
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return out;
}

TORCH_LIBRARY_IMPL(moesaic, CUDA, m) {
  m.impl("route_adaptive", route_adaptive_cuda);
}

}  // namespace
}  // namespace moesaic::ops
