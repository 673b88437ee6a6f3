// SPDX-License-Identifier: Apache-2.0
#include "moesaic/ops/dispatch.h"

#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "../check.h"
#include "move_rows.h"
#include "switchable.h"
#include "tensors.h"

namespace moesaic::ops {
namespace {

at::Tensor dispatch_cuda(const at::Tensor& x_in, const at::Tensor& offsets, const at::Tensor& token,
                         const at::Tensor& token_offsets_in, const at::Tensor& token_row_in) {
  check_dispatch(x_in, offsets, token, token_offsets_in, token_row_in);
  const DeviceScope device(x_in);
  const at::Tensor x = x_in.contiguous();
  const at::Tensor token_offsets = token_offsets_in.contiguous();
  const at::Tensor token_row = token_row_in.contiguous();
  at::Tensor rows = at::empty({token.size(0), x.size(1)}, x.options());
  with_row_type(x, [&](auto tag) {
    using T = typename decltype(tag)::type;
    kernels::dispatch_rows<T>({in<T>(x), in<int32_t>(token_offsets), in<int32_t>(token_row),
                               out<T>(rows), x.size(0), rows.size(0), x.size(1)},
                              device.stream());
  });
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return rows;
}

at::Tensor dispatch_backward_cuda(const at::Tensor& grad_in, const at::Tensor& token_offsets_in,
                                  const at::Tensor& token_row_in) {
  check_dispatch_backward(grad_in, token_offsets_in, token_row_in);
  const DeviceScope device(grad_in);
  const at::Tensor grad_rows = grad_in.contiguous();
  const at::Tensor token_offsets = token_offsets_in.contiguous();
  const at::Tensor token_row = token_row_in.contiguous();
  at::Tensor grad_x =
      at::empty({token_offsets.size(0) - 1, grad_rows.size(1)}, grad_rows.options());
  with_row_type(grad_rows, [&](auto tag) {
    using T = typename decltype(tag)::type;
    kernels::sum_rows<T>({in<T>(grad_rows), nullptr, in<int32_t>(token_offsets),
                          in<int32_t>(token_row), out<T>(grad_x), grad_x.size(0), grad_x.size(1)},
                         device.stream());
  });
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return grad_x;
}

TORCH_LIBRARY_IMPL(moesaic, CUDA, m) {
  m.impl("dispatch", Switchable<"dispatch", dispatch_cuda>::run);
  m.impl("dispatch_backward", Switchable<"dispatch", dispatch_backward_cuda, "_backward">::run);
}

}  // namespace
}  // namespace moesaic::ops
