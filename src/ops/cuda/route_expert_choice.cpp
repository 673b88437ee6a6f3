// SPDX-License-Identifier: Apache-2.0
#include "route_expert_choice_on.h"

#include <torch/library.h>

#include "tensors.h"

namespace moesaic::ops {
namespace {

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor> route_expert_choice_cuda(
    const at::Tensor& logits, int64_t rows, double capacity_factor, int64_t group_size,
    int64_t gate, at::IntArrayRef kept, bool reroute, int64_t capacity_rounding,
    int64_t capacity_multiple_of) {
  const DeviceScope device(logits);
  const auto out = on_device::route_expert_choice_on(
      device, logits,
      expert_choice_options(rows, capacity_factor, group_size, gate, kept, reroute,
                            capacity_rounding, capacity_multiple_of));
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return out;
}

at::Tensor route_expert_choice_backward_cuda(const at::Tensor& grad_gate, const at::Tensor& logits,
                                             const at::Tensor& token, const at::Tensor& gates,
                                             int64_t rows, double capacity_factor,
                                             int64_t group_size, int64_t gate, at::IntArrayRef kept,
                                             bool reroute, int64_t capacity_rounding,
                                             int64_t capacity_multiple_of) {
  const DeviceScope device(logits);
  const auto out = on_device::route_expert_choice_backward_on(
      device, grad_gate, logits, token, gates,
      expert_choice_options(rows, capacity_factor, group_size, gate, kept, reroute,
                            capacity_rounding, capacity_multiple_of));
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return out;
}

TORCH_LIBRARY_IMPL(moesaic, CUDA, m) {
  m.impl("route_expert_choice", route_expert_choice_cuda);
  m.impl("route_expert_choice_backward", route_expert_choice_backward_cuda);
}

}  // namespace
}  // namespace moesaic::ops
