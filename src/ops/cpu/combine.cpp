// SPDX-License-Identifier: Apache-2.0
#include "moesaic/ops/combine.h"

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros_like.h>
#include <torch/library.h>

#include <algorithm>
#include <tuple>

#include "../check.h"
#include "../widened.h"
#include "large_memory.h"
#include "rows.h"

namespace moesaic::ops {
namespace {

/// Returns the gates in the type of the sums over such rows.
at::Tensor sums_of(const at::Tensor& gate, const at::Tensor& rows) {
  return gate.to(is_half_wide(rows.scalar_type()) ? at::kFloat : rows.scalar_type()).contiguous();
}

/// Returns the rows with the biases of their experts, as the CPU's experts already give them.
at::Tensor with_bias(const at::Tensor& rows, const OptionalTensor& offsets,
                     const OptionalTensor& bias) {
  if (!bias.has_value()) return rows.contiguous();
  const at::Tensor counts = offsets->to(at::kLong).diff();
  const at::Tensor of_rows = bias->repeat_interleave(counts, 0);
  at::Tensor out = rows.contiguous().clone();
  out.narrow(0, 0, of_rows.size(0)).add_(of_rows);
  return out;
}

at::Tensor combine_cpu(const at::Tensor& rows_in, const at::Tensor& gate,
                       const at::Tensor& token_offsets_in, const at::Tensor& token_row_in,
                       const OptionalTensor& offsets, const OptionalTensor& bias) {
  check_combine(rows_in, gate, token_offsets_in, token_row_in, offsets, bias);
  const at::Tensor rows = with_bias(rows_in, offsets, bias);
  const at::Tensor weights = sums_of(gate, rows);
  const at::Tensor token_offsets = token_offsets_in.contiguous();
  const at::Tensor token_row = token_row_in.contiguous();
  const int64_t tokens = token_offsets.size(0) - 1;
  const int64_t width = rows.size(1);
  at::Tensor y = empty_large({tokens, width}, rows.options());
  const auto* begins = token_offsets.const_data_ptr<int32_t>();
  const auto* row_of = token_row.const_data_ptr<int32_t>();
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, rows.scalar_type(), "combine", [&] {
    const auto* from = rows.const_data_ptr<scalar_t>();
    const auto* weight = weights.const_data_ptr<SumOf<scalar_t>>();
    auto* to = y.mutable_data_ptr<scalar_t>();
    at::parallel_for(0, tokens, kRowsPerTask, [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) {
        const int32_t* rows_of_t = row_of + begins[t];
        weighted_sum(
            to + t * width, width, begins[t + 1] - begins[t],
            [&](int32_t i) { return from + rows_of_t[i] * width; },
            [&](int32_t i) { return weight[rows_of_t[i]]; });
      }
    });
  });
  return y;
}

std::tuple<at::Tensor, at::Tensor> combine_backward_cpu(
    const at::Tensor& grad_in, const at::Tensor& rows_in, const at::Tensor& gate_in,
    const at::Tensor& token_offsets_in, const at::Tensor& token_row_in,
    const OptionalTensor& offsets, const OptionalTensor& bias) {
  check_combine_backward(grad_in, rows_in, gate_in, token_offsets_in, token_row_in, offsets, bias);
  const at::Tensor token_offsets = token_offsets_in.contiguous();
  const at::Tensor token_row = token_row_in.contiguous();
  const at::Tensor grad = grad_in.contiguous();
  const at::Tensor rows = with_bias(rows_in, offsets, bias);
  const at::Tensor gate = sums_of(gate_in, rows);
  const int64_t width = rows.size(1);
  at::Tensor grad_rows = at::zeros_like(rows);
  at::Tensor grad_gate = at::zeros_like(gate);
  const auto* begins = token_offsets.const_data_ptr<int32_t>();
  const auto* row_of = token_row.const_data_ptr<int32_t>();
  AT_DISPATCH_FLOATING_TYPES_AND2(
      at::kBFloat16, at::kHalf, rows.scalar_type(), "combine_backward", [&] {
        const auto* arriving = grad.const_data_ptr<scalar_t>();
        const auto* from = rows.const_data_ptr<scalar_t>();
        const auto* weight = gate.const_data_ptr<SumOf<scalar_t>>();
        auto* to = grad_rows.mutable_data_ptr<scalar_t>();
        auto* to_gate = grad_gate.mutable_data_ptr<SumOf<scalar_t>>();
        // Every row belongs to one token, so threads share no row.
        at::parallel_for(
            0, token_offsets.size(0) - 1, kRowsPerTask, [&](int64_t begin, int64_t end) {
              for (int64_t t = begin; t < end; ++t) {
                for (int32_t i = begins[t]; i < begins[t + 1]; ++i) {
                  const int64_t row = row_of[i];
                  weighted_sum(
                      to + row * width, width, 1, [&](int32_t) { return arriving + t * width; },
                      [&](int32_t) { return weight[row]; });
                  to_gate[row] = dot(arriving + t * width, from + row * width, width);
                }
              }
            });
      });
  return {grad_rows, grad_gate.to(gate_in.scalar_type())};
}

TORCH_LIBRARY_IMPL(moesaic, CPU, m) {
  m.impl("combine", combine_cpu);
  m.impl("combine_backward", combine_backward_cpu);
}

}  // namespace
}  // namespace moesaic::ops
