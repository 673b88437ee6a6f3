// SPDX-License-Identifier: Apache-2.0
#include "route_token_choice_on.h"

#include <torch/library.h>

#include "switchable.h"
#include "tensors.h"

namespace moesaic::ops {
namespace {

ChoiceTensors route_token_choice_cuda(const at::Tensor& logits, const TokenChoiceOptions& options) {
  const DeviceScope device(logits);
  const auto out = on_device::route_token_choice_on(device, logits, options);
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return out;
}

at::Tensor route_token_choice_backward_cuda(const at::Tensor& grad_gate, const at::Tensor& logits,
                                            const at::Tensor& choice, const at::Tensor& choice_row,
                                            const TokenChoiceOptions& options) {
  const DeviceScope device(logits);
  const auto out = on_device::route_token_choice_backward_on(device, grad_gate, logits, choice,
                                                             choice_row, options);
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return out;
}

TORCH_LIBRARY_IMPL(moesaic, CUDA, m) {
  m.impl("route_token_choice",
         Switchable<"route_token_choice",
                    TokenChoiceOperator::unpacked<route_token_choice_cuda>>::run);
  m.impl("route_token_choice_backward",
         Switchable<"route_token_choice",
                    TokenChoiceBackward::unpacked<route_token_choice_backward_cuda>,
                    "_backward">::run);
}

}  // namespace
}  // namespace moesaic::ops
