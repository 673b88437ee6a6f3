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

at::Tensor route_expert_choice_backward_cuda(const at::Tensor& grad_gate, const at::Tensor& logits,
                                             const at::Tensor& token, const at::Tensor& gates,
                                             const ExpertChoiceOptions& options) {
  const DeviceScope device(logits);
  const auto out =
      on_device::route_expert_choice_backward_on(device, grad_gate, logits, token, gates, options);
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return out;
}

TORCH_LIBRARY_IMPL(moesaic, CUDA, m) {
  m.impl("route_expert_choice",
         Switchable<"route_expert_choice",
                    ExpertChoiceOperator::unpacked<route_expert_choice_cuda>>::run);
  m.impl("route_expert_choice_backward",
         Switchable<"route_expert_choice",
                    ExpertChoiceBackward::unpacked<route_expert_choice_backward_cuda>,
                    "_backward">::run);
}

}  // namespace
}  // namespace moesaic::ops
