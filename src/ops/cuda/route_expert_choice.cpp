// SPDX-License-Identifier: Apache-2.0
#include "route_expert_choice_on.h"

#include <torch/library.h>

#include "switchable.h"
#include "tensors.h"

namespace moesaic::ops {
namespace {

RowTensors route_expert_choice_cuda(const at::Tensor& logits, const ExpertChoiceOptions& options) {
  const DeviceScope device(logits);
  const auto out = on_device::route_expert_choice_on(device, logits, options);
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return out;
}

TORCH_LIBRARY_IMPL(moesaic, CUDA, m) {
  m.impl("route_expert_choice",
         Switchable<"route_expert_choice",
                    ExpertChoiceOperator::unpacked<route_expert_choice_cuda>>::run);
}

}  // namespace
}  // namespace moesaic::ops
