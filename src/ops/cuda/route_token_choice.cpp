// SPDX-License-Identifier: Apache-2.0
#include "route_token_choice_on.h"

#include <torch/library.h>

#include "tensors.h"

namespace moesaic::ops {
namespace {

on_device::RouteTensors route_cuda(const at::Tensor& logits, int64_t k, int64_t gate,
                                   double capacity_factor, int64_t group_size, at::IntArrayRef kept,
                                   bool batch_priority, bool reroute, int64_t capacity_rounding,
                                   int64_t capacity_multiple_of, int64_t capacity) {
  const DeviceScope device(logits);
  const auto out = on_device::route_token_choice_on(
      device, logits,
      token_choice_options(k, gate, capacity_factor, group_size, kept, batch_priority, reroute,
                           capacity_rounding, capacity_multiple_of, capacity));
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return out;
}

at::Tensor route_backward_cuda(const at::Tensor& grad_gate, const at::Tensor& logits,
                               const at::Tensor& choice, const at::Tensor& choice_row, int64_t gate,
                               at::IntArrayRef kept, bool reroute) {
  const DeviceScope device(logits);
  const auto out = on_device::route_token_choice_backward_on(device, grad_gate, logits, choice,
                                                             choice_row, gate, kept, reroute);
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return out;
}

TORCH_LIBRARY_IMPL(moesaic, CUDA, m) {
  m.impl("route_token_choice", route_cuda);
  m.impl("route_token_choice_backward", route_backward_cuda);
}

}  // namespace
}  // namespace moesaic::ops
