// SPDX-License-Identifier: Apache-2.0
#include "moesaic/ops/combine.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

#include <tuple>

#include "../check.h"
#include "move_rows.h"
#include "switchable.h"
#include "tensors.h"

namespace moesaic::ops {
namespace {

/// Biases of the rows' experts, contiguous; both tensors are empty without a bias.
struct Bias {
  at::Tensor offsets, values;

  Bias(const OptionalTensor& offsets_in, const OptionalTensor& bias) {
    if (!bias.has_value()) return;
    offsets = offsets_in->contiguous();
    values = bias->contiguous();
  }
  template <class T>
  kernels::RowBias<T> of_rows() const {
    if (!values.defined()) return {};
    return {in<T>(values), in<int32_t>(offsets), static_cast<int32_t>(values.size(0))};
  }
};

at::Tensor combine_cuda(const at::Tensor& rows_in, const at::Tensor& gate_in,
                        const at::Tensor& token_offsets_in, const at::Tensor& token_row_in,
                        const OptionalTensor& offsets, const OptionalTensor& bias_in) {
  check_combine(rows_in, gate_in, token_offsets_in, token_row_in, offsets, bias_in);
  const at::AutoDispatchBelowADInplaceOrView guard;
  const DeviceScope device(rows_in);
  const at::Tensor rows = rows_in.contiguous();
  const at::Tensor gate = gate_in.to(sum_type(rows.scalar_type())).contiguous();
  const at::Tensor token_offsets = token_offsets_in.contiguous();
  const at::Tensor token_row = token_row_in.contiguous();
  const Bias bias(offsets, bias_in);
  at::Tensor y = at::empty({token_offsets.size(0) - 1, rows.size(1)}, rows.options());
  with_row_type(rows, [&](auto tag) {
    using T = typename decltype(tag)::type;
    kernels::sum_rows<T>(
        {in<T>(rows), in<kernels::Sum<T>>(gate), in<int32_t>(token_offsets), in<int32_t>(token_row),
         out<T>(y), y.size(0), y.size(1), bias.of_rows<T>()},
        device.stream());
  });
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return y;
}

std::tuple<at::Tensor, at::Tensor> combine_backward_cuda(
    const at::Tensor& grad_in, const at::Tensor& rows_in, const at::Tensor& gate_in,
    const at::Tensor& token_offsets_in, const at::Tensor& token_row_in,
    const OptionalTensor& offsets, const OptionalTensor& bias_in) {
  check_combine_backward(grad_in, rows_in, gate_in, token_offsets_in, token_row_in, offsets,
                         bias_in);
  const at::AutoDispatchBelowADInplaceOrView guard;
  const DeviceScope device(rows_in);
  const at::Tensor grad = grad_in.contiguous();
  const at::Tensor rows = rows_in.contiguous();
  const at::Tensor gate = gate_in.to(sum_type(rows.scalar_type())).contiguous();
  const at::Tensor token_offsets = token_offsets_in.contiguous();
  const at::Tensor token_row = token_row_in.contiguous();
  const Bias bias(offsets, bias_in);
  at::Tensor grad_rows = at::empty_like(rows);
  at::Tensor grad_gate = at::empty_like(gate);
  with_row_type(rows, [&](auto tag) {
    using T = typename decltype(tag)::type;
    kernels::combine_backward<T>(
        {in<T>(grad), in<T>(rows), in<kernels::Sum<T>>(gate), in<int32_t>(token_offsets),
         in<int32_t>(token_row), out<T>(grad_rows), out<kernels::Sum<T>>(grad_gate),
         token_offsets.size(0) - 1, rows.size(0), rows.size(1), bias.of_rows<T>()},
        device.stream());
  });
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return {grad_rows, grad_gate.to(gate_in.scalar_type())};
}

TORCH_LIBRARY_IMPL(moesaic, CUDA, m) {
  m.impl("combine", Switchable<"combine", combine_cuda>::run);
  m.impl("combine_backward", Switchable<"combine", combine_backward_cuda, "_backward">::run);
}

}  // namespace
}  // namespace moesaic::ops
