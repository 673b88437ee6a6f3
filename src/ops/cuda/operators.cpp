// SPDX-License-Identifier: Apache-2.0
// Registers the operators that have kernels for a GPU, each of which MOESAIC_CUDA_OFF can turn off.
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include "grouped_mlp_on.h"
#include "moesaic/ops/device.h"
#include "move_rows_on.h"
#include "route_expert_choice_on.h"
#include "route_token_choice_on.h"
#include "start.h"
#include "switchable.h"

namespace moesaic::ops {

using at::Tensor;

bool groups_products(const Tensor& rows, const Tensor& w) {
  if (!rows.is_cuda() || !suits_grouped_mm(rows, w) || cuda_off(kGroupedMm)) return false;
  int major = 0;
  C10_CUDA_CHECK(
      cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, rows.device().index()));
  return major == 9 || major == 10;
}

namespace {

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

/// Returns compute(device) on the current stream of the tensor's device.
template <class Compute>
auto on_gpu(const Tensor& tensor, const Compute& compute) {
  const DeviceScope device(tensor);
  auto out = compute(device);
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return out;
}

ChoiceTensors token_choice_cuda(const Tensor& logits, const TokenChoiceOptions& options) {
  return on_gpu(logits, [&](const DeviceScope& device) {
    return on_device::route_token_choice_on(device, logits, options);
  });
}

Tensor token_choice_backward_cuda(const Tensor& grad_gate, const Tensor& logits,
                                  const Tensor& choice, const Tensor& choice_row,
                                  const TokenChoiceOptions& options) {
  return on_gpu(logits, [&](const DeviceScope& device) {
    return on_device::route_token_choice_backward_on(device, grad_gate, logits, choice, choice_row,
                                                     options);
  });
}

RowTensors expert_choice_cuda(const Tensor& logits, const ExpertChoiceOptions& options) {
  return on_gpu(logits, [&](const DeviceScope& device) {
    return on_device::route_expert_choice_on(device, logits, options);
  });
}

Tensor dispatch_cuda(const DispatchArguments& call) {
  return on_gpu(call.x,
                [&](const DeviceScope& device) { return on_device::dispatch_on(device, call); });
}

Tensor dispatch_backward_cuda(const DispatchBackwardArguments& call) {
  return on_gpu(call.grad_rows, [&](const DeviceScope& device) {
    return on_device::dispatch_backward_on(device, call);
  });
}

Tensor combine_cuda(const CombineArguments& call) {
  return on_gpu(call.rows,
                [&](const DeviceScope& device) { return on_device::combine_on(device, call); });
}

std::tuple<Tensor, Tensor> combine_backward_cuda(const CombineBackwardArguments& call) {
  return on_gpu(call.of.rows, [&](const DeviceScope& device) {
    return on_device::combine_backward_on(device, call);
  });
}

std::tuple<Tensor, Tensor> grouped_mlp_cuda(const GroupedMlpArguments& call) {
  return on_gpu(call.rows, [&](const DeviceScope& device) {
    return on_device::grouped_mlp_on(device, call.rows, call.offsets,
                                     {call.w1, call.b1, call.w2, call.add_b2 ? call.b2 : Tensor()},
                                     call.activation, call.keep_hidden,
                                     groups_products(call.rows, call.w1));
  });
}

GroupedMlpGradients grouped_mlp_backward_cuda(const GroupedMlpBackwardArguments& call) {
  return on_gpu(call.rows, [&](const DeviceScope& device) {
    return on_device::grouped_mlp_backward_on(device, call.grad, call.rows, call.offsets,
                                              call.hidden, {call.w1, call.b1, call.w2, {}},
                                              call.activation, groups_products(call.rows, call.w1));
  });
}

/// Adds a kernel that is the CPU's while it is turned off.
template <class Op, auto kernel>
void add(torch::Library& m) {
  m.impl(Op::kName, Switchable<Op, Op::template run<kernel>>::run);
}

TORCH_LIBRARY_IMPL(moesaic, CUDA, m) {
  add<TokenChoiceOperator, token_choice_cuda>(m);
  add<TokenChoiceBackward, token_choice_backward_cuda>(m);
  add<ExpertChoiceOperator, expert_choice_cuda>(m);
  add<ExpertChoiceBackward, expert_choice_backward>(m);  // The composite, off with its operator.
  add<DispatchOperator, dispatch_cuda>(m);
  add<DispatchBackward, dispatch_backward_cuda>(m);
  add<CombineOperator, combine_cuda>(m);
  add<CombineBackward, combine_backward_cuda>(m);
  add<GroupedMlpOperator, grouped_mlp_cuda>(m);
  add<GroupedMlpBackward, grouped_mlp_backward_cuda>(m);
}

}  // namespace
}  // namespace moesaic::ops
