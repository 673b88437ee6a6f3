// SPDX-License-Identifier: Apache-2.0
// Dispatch, combine and their gradients on a device. `Device` starts kernels: the current stream of
// a GPU (operators.cpp), or the serial device of a test.
#pragma once

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>

#include "../kernels/move_rows.h"
#include "../mlp_operators.h"
#include "tensor_data.h"

namespace moesaic::ops::on_device {

using at::Tensor;

/// Starts the kernel that make(tag, integral_constant count, lanes) returns, which moves rows of
/// these tensors, `count` numbers at once, by `lanes` threads for each of `tokens` tokens.
template <class Device, class Make>
void start_move(const Device& device, int64_t tokens, std::initializer_list<Tensor> tensors,
                const Make& make) {
  const int64_t width = tensors.begin()->size(1);
  with_rows(tensors, [&](auto tag, auto count) {
    constexpr int kThreads = kernels::kMoveThreads;
    const int lanes = kernels::lanes_for(width / decltype(count)::value, kernels::kWarp);
    const auto kernel = make(tag, count, lanes);
    device.template start<kThreads>(kernel, kernels::divide_up<int64_t>(tokens * lanes, kThreads),
                                    kThreads, kernel.shared_bytes(kThreads));
  });
}

template <class Device>
Tensor dispatch_on(const Device& device, const DispatchArguments& call) {
  const Tensor x = call.x.contiguous(), token_offsets = call.token_offsets.contiguous();
  const Tensor token_row = call.token_row.contiguous();
  const Tensor rows = at::empty({call.token.size(0), x.size(1)}, x.options());
  start_move(device, std::max<int64_t>(x.size(0), 1), {x, rows},
             [&](auto tag, auto count, int lanes) {
               using T = typename decltype(tag)::type;
               return kernels::DispatchRows<T, decltype(count)::value>{in<T>(x),
                                                                       in<int32_t>(token_offsets),
                                                                       in<int32_t>(token_row),
                                                                       out<T>(rows),
                                                                       x.size(0),
                                                                       rows.size(0),
                                                                       x.size(1),
                                                                       lanes};
             });
  return rows;
}

/// Biases of the rows' experts, contiguous; both tensors are undefined without a bias.
struct RowBiases {
  Tensor offsets, values;

  RowBiases() = default;
  explicit RowBiases(const CombineArguments& call) {
    if (!call.bias.has_value()) return;
    offsets = call.offsets->contiguous();
    values = call.bias->contiguous();
  }
  template <class T>
  kernels::RowBias<T> of_rows() const {
    if (!values.defined()) return {};
    return {in<T>(values), in<int32_t>(offsets), static_cast<int32_t>(values.size(0))};
  }
};

/// Returns the sums over the rows of each token [T, d], weighted by `gate` where it is defined.
template <class Device>
Tensor sum_rows_on(const Device& device, const Tensor& rows_in, const Tensor& gate,
                   const Tensor& token_offsets_in, const Tensor& token_row_in,
                   const RowBiases& biases = {}) {
  const Tensor rows = rows_in.contiguous(), token_offsets = token_offsets_in.contiguous();
  const Tensor token_row = token_row_in.contiguous();
  const int64_t tokens = token_offsets.size(0) - 1, width = rows.size(1);
  const Tensor y = at::empty({tokens, width}, rows.options());
  start_move(device, tokens, {rows, y, biases.values}, [&](auto tag, auto count, int lanes) {
    using T = typename decltype(tag)::type;
    return kernels::SumRows<T, decltype(count)::value>{
        in<T>(rows),
        gate.defined() ? in<kernels::Sum<T>>(gate) : nullptr,
        in<int32_t>(token_offsets),
        in<int32_t>(token_row),
        out<T>(y),
        tokens,
        width,
        lanes,
        biases.of_rows<T>()};
  });
  return y;
}

/// Returns the gates in the type of the sums over the rows, contiguous.
inline Tensor summed_gates(const CombineArguments& call) {
  return call.gate.to(sum_type(call.rows.scalar_type())).contiguous();
}

template <class Device>
Tensor dispatch_backward_on(const Device& device, const DispatchBackwardArguments& call) {
  return sum_rows_on(device, call.grad_rows, {}, call.token_offsets, call.token_row);
}

template <class Device>
Tensor combine_on(const Device& device, const CombineArguments& call) {
  return sum_rows_on(device, call.rows, summed_gates(call), call.token_offsets, call.token_row,
                     RowBiases(call));
}

template <class Device>
std::tuple<Tensor, Tensor> combine_backward_on(const Device& device,
                                               const CombineBackwardArguments& call) {
  const Tensor grad = call.grad.contiguous(), rows = call.of.rows.contiguous();
  const Tensor gate = summed_gates(call.of);
  const Tensor token_offsets = call.of.token_offsets.contiguous();
  const Tensor token_row = call.of.token_row.contiguous();
  const RowBiases biases(call.of);
  const Tensor grad_rows = at::empty_like(rows), grad_gate = at::empty_like(gate);
  const int64_t tokens = token_offsets.size(0) - 1, width = rows.size(1);
  start_move(device, std::max<int64_t>(tokens, 1), {grad, rows, grad_rows, biases.values},
             [&](auto tag, auto count, int lanes) {
               using T = typename decltype(tag)::type;
               return kernels::CombineBackward<T, decltype(count)::value>{
                   in<T>(grad),
                   in<T>(rows),
                   in<kernels::Sum<T>>(gate),
                   in<int32_t>(token_offsets),
                   in<int32_t>(token_row),
                   out<T>(grad_rows),
                   out<kernels::Sum<T>>(grad_gate),
                   tokens,
                   rows.size(0),
                   width,
                   lanes,
                   biases.of_rows<T>()};
             });
  return {grad_rows, grad_gate.to(call.of.gate.scalar_type())};
}

}  // namespace moesaic::ops::on_device
