// SPDX-License-Identifier: Apache-2.0
#include "moesaic/ops/late_copy.h"

#include <ATen/ops/empty.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace moesaic {

LateCopy::LateCopy(const at::Tensor& values) : host_(values) {
  const at::Device device = values.device();
  if (device.is_cpu() || device.is_meta()) return;
  // Copies to pageable memory would wait.
  host_ = at::empty(values.sizes(), values.options().device(at::kCPU).pinned_memory(true));
  host_.copy_(values, /*non_blocking=*/true);
  event_.emplace(device.type());
  event_->record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
}

at::Tensor LateCopy::take() const {
  if (event_) event_->synchronize();
  return host_.cpu();  // The meta device has no values: this is where it throws.
}

}  // namespace moesaic
