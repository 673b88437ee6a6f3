// SPDX-License-Identifier: Apache-2.0
#include "moesaic/ops/grouped_mlp.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/library.h>

#include "../check.h"
#include "grouped_mlp_on.h"
#include "moesaic/ops/device.h"
#include "switchable.h"
#include "tensors.h"

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

std::tuple<Tensor, Tensor> forward_cuda(const Tensor& rows, const Tensor& offsets, const Tensor& w1,
                                        const Tensor& b1, const Tensor& w2, const Tensor& b2,
                                        int64_t activation, bool keep_hidden, bool add_b2) {
  check_grouped_mlp(rows, offsets, w1, b1, w2, b2, activation);
  const at::AutoDispatchBelowADInplaceOrView guard;
  const DeviceScope device(rows);
  auto out = on_device::grouped_mlp_on(device, rows, offsets, {w1, b1, w2, add_b2 ? b2 : Tensor()},
                                       activation, keep_hidden, groups_products(rows, w1));
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return out;
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> backward_cuda(
    const Tensor& grad, const Tensor& rows, const Tensor& offsets, const Tensor& hidden,
    const Tensor& w1, const Tensor& b1, const Tensor& w2, int64_t activation) {
  check_grouped_mlp_backward(grad, rows, offsets, hidden, w1, b1, w2, activation);
  const at::AutoDispatchBelowADInplaceOrView guard;
  const DeviceScope device(rows);
  auto out = on_device::grouped_mlp_backward_on(
      device, grad, rows, offsets, hidden, {w1, b1, w2, {}}, activation, groups_products(rows, w1));
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return out;
}

TORCH_LIBRARY_IMPL(moesaic, CUDA, m) {
  m.impl("grouped_mlp", Switchable<"grouped_mlp", forward_cuda>::run);
  m.impl("grouped_mlp_backward", Switchable<"grouped_mlp", backward_cuda, "_backward">::run);
}

}  // namespace
}  // namespace moesaic::ops
