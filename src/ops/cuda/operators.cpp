// SPDX-License-Identifier: Apache-2.0
// Registers the operators that have kernels for a GPU, each of which MOESAIC_CUDA_OFF can turn off.
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include "grouped_mlp_on.h"
#include "move_rows_on.h"
#include "route_expert_choice_on.h"
#include "route_token_choice_on.h"
#include "start.h"
#include "switchable.h"

namespace moesaic::ops {

using at::Tensor;

bool groups_products(const Tensor& rows, const Tensor& w) {
  if (!rows.is_cuda() || !suits_grouped_mm(rows, w) || is_cuda_feature_disabled(kGroupedMm))
    return false;
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

  /// Starts a kernel on the stream; see start.h.
  template <int Threads, class Kernel>
  void start(const Kernel& kernel, int64_t blocks, int threads, int64_t shared_bytes) const {
    kernels::start<Threads>(kernel, blocks, threads, shared_bytes, stream_.stream());
  }

 private:
  c10::cuda::CUDAGuard guard_;
  c10::cuda::CUDAStream stream_;
};

// The tensor whose device computes.
const Tensor& tensor_of(const Tensor& logits) {
  return logits;
}
const Tensor& tensor_of(const DispatchArguments& in) {
  return in.x;
}
const Tensor& tensor_of(const DispatchBackwardArguments& in) {
  return in.grad_rows;
}
const Tensor& tensor_of(const CombineBackwardArguments& in) {
  return in.grad;
}
template <class In>
const Tensor& tensor_of(const In& in) {
  return in.rows;
}

/// Calls compute(device, in...) on the current stream of the device.
template <auto compute>
struct OnGpu {
  template <class First, class... Others>
  auto operator()(const First& first, const Others&... others) const {
    const DeviceScope device(tensor_of(first));
    auto out = compute(device, first, others...);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return out;
  }
};

std::tuple<Tensor, Tensor> mlp_on(const DeviceScope& device, const GroupedMlpArguments& in) {
  return on_device::grouped_mlp_on(device, in, groups_products(in.rows, in.w1));
}

GroupedMlpGradients mlp_backward_on(const DeviceScope& device,
                                    const GroupedMlpBackwardArguments& in) {
  return on_device::grouped_mlp_backward_on(device, in, groups_products(in.rows, in.w1));
}

/// Adds a kernel that is the CPU's while it is turned off.
template <class Op, auto compute>
void add(torch::Library& m) {
  m.impl(Op::kName, Switchable<Op, Op::template run<OnGpu<compute>{}>>::run);
}

TORCH_LIBRARY_IMPL(moesaic, CUDA, m) {
  using namespace on_device;
  add<TokenChoiceOperator, route_token_choice_on<DeviceScope>>(m);
  add<ExpertChoiceOperator, route_expert_choice_on<DeviceScope>>(m);
  // Composites, which are off with their operators.
  m.impl(TokenChoiceBackward::kName,
         Switchable<TokenChoiceBackward, TokenChoiceBackward::run<token_choice_backward>>::run);
  m.impl(ExpertChoiceBackward::kName,
         Switchable<ExpertChoiceBackward, ExpertChoiceBackward::run<expert_choice_backward>>::run);
  add<DispatchOperator, dispatch_on<DeviceScope>>(m);
  add<DispatchBackward, dispatch_backward_on<DeviceScope>>(m);
  add<CombineOperator, combine_on<DeviceScope>>(m);
  add<CombineBackward, combine_backward_on<DeviceScope>>(m);
  add<GroupedMlpOperator, mlp_on>(m);
  add<GroupedMlpBackward, mlp_backward_on>(m);
}

}  // namespace
}  // namespace moesaic::ops
