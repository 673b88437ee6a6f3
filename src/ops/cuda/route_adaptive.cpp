// SPDX-License-Identifier: Apache-2.0
#include "route_adaptive_on.h"

#include <torch/library.h>

#include "switchable.h"
#include "tensors.h"

namespace moesaic::ops {
namespace {

RowTensors route_adaptive_cuda(const at::Tensor& logits, const AdaptiveOptions& options) {
  const DeviceScope device(logits);
  const auto out = on_device::route_adaptive_on(device, logits, options);
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return out;
}

TORCH_LIBRARY_IMPL(moesaic, CUDA, m) {
  m.impl("route_adaptive",
         Switchable<"route_adaptive", AdaptiveOperator::unpacked<route_adaptive_cuda>>::run);
}

}  // namespace
}  // namespace moesaic::ops
