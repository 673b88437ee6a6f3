// SPDX-License-Identifier: Apache-2.0
// Rows that move between tokens and experts: dispatch, combine and their gradients.
#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/ops/zeros_like.h>
#include <torch/library.h>

#include <algorithm>

#include "../mlp_operators.h"
#include "moesaic/ops/memory.h"
#include "rows.h"

namespace moesaic::ops {
namespace {

at::Tensor dispatch_cpu(const DispatchArguments& in) {
  const at::Tensor x = in.x.contiguous(), offsets = in.offsets.contiguous();
  const at::Tensor token = in.token.contiguous();
  const int64_t width = x.size(1), bound = token.size(0);
  at::Tensor rows = empty_large({bound, width}, x.options());
  // Only rows of an expert have a valid token index.
  const int64_t filled =
      x.size(0) == 0 ? 0 : offsets.const_data_ptr<int32_t>()[offsets.size(0) - 1];
  const auto* token_of = token.const_data_ptr<int32_t>();
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, x.scalar_type(), "dispatch", [&] {
    const auto* from = x.const_data_ptr<scalar_t>();
    auto* to = rows.mutable_data_ptr<scalar_t>();
    at::parallel_for(0, bound, kRowsPerTask, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        if (row < filled) {
          std::copy_n(from + token_of[row] * width, width, to + row * width);
        } else {
          std::fill_n(to + row * width, width, scalar_t(0));
        }
      }
    });
  });
  return rows;
}

/// Returns the sums over the rows of each token [T, d], weighted by gates in the type of the sums
/// where they are defined.
at::Tensor sum_rows(const at::Tensor& rows_in, const at::Tensor& gate,
                    const at::Tensor& token_offsets_in, const at::Tensor& token_row_in) {
  const at::Tensor rows = rows_in.contiguous(), token_offsets = token_offsets_in.contiguous();
  const at::Tensor token_row = token_row_in.contiguous();
  const int64_t tokens = token_offsets.size(0) - 1, width = rows.size(1);
  at::Tensor y = empty_large({tokens, width}, rows.options());
  const auto* begins = token_offsets.const_data_ptr<int32_t>();
  const auto* row_of = token_row.const_data_ptr<int32_t>();
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, rows.scalar_type(), "sum_rows", [&] {
    using Sum = SumOf<scalar_t>;
    const auto* from = rows.const_data_ptr<scalar_t>();
    const Sum* const weight = gate.defined() ? gate.const_data_ptr<Sum>() : nullptr;
    auto* to = y.mutable_data_ptr<scalar_t>();
    at::parallel_for(0, tokens, kRowsPerTask, [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) {
        const int32_t* rows_of_t = row_of + begins[t];
        weighted_sum(
            to + t * width, width, begins[t + 1] - begins[t],
            [&](int32_t i) { return from + rows_of_t[i] * width; },
            [&](int32_t i) { return weight == nullptr ? Sum(1) : weight[rows_of_t[i]]; });
      }
    });
  });
  return y;
}

at::Tensor dispatch_backward_cpu(const DispatchBackwardArguments& in) {
  return sum_rows(in.grad_rows, {}, in.token_offsets, in.token_row);
}

/// Returns the gates in the type of the sums over such rows.
at::Tensor sums_of(const at::Tensor& gate, const at::Tensor& rows) {
  return gate.to(is_half_wide(rows.scalar_type()) ? at::kFloat : rows.scalar_type()).contiguous();
}

/// Returns the rows with the biases of their experts, as the CPU's experts already give them.
at::Tensor with_bias(const CombineArguments& in) {
  if (!in.bias.has_value()) return in.rows.contiguous();
  const at::Tensor counts = in.offsets->to(at::kLong).diff();
  const at::Tensor of_rows = in.bias->repeat_interleave(counts, 0);
  at::Tensor out = in.rows.contiguous().clone();
  out.narrow(0, 0, of_rows.size(0)).add_(of_rows);
  return out;
}

at::Tensor combine_cpu(const CombineArguments& in) {
  const at::Tensor rows = with_bias(in);
  return sum_rows(rows, sums_of(in.gate, rows), in.token_offsets, in.token_row);
}

std::tuple<at::Tensor, at::Tensor> combine_backward_cpu(const CombineBackwardArguments& in) {
  const at::Tensor token_offsets = in.of.token_offsets.contiguous();
  const at::Tensor token_row = in.of.token_row.contiguous(), grad = in.grad.contiguous();
  const at::Tensor rows = with_bias(in.of), gate = sums_of(in.of.gate, rows);
  const int64_t width = rows.size(1);
  at::Tensor grad_rows = at::zeros_like(rows), grad_gate = at::zeros_like(gate);
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
  return {grad_rows, grad_gate.to(in.of.gate.scalar_type())};
}

TORCH_LIBRARY_IMPL(moesaic, CPU, m) {
  implement<DispatchOperator, dispatch_cpu>(m);
  implement<DispatchBackward, dispatch_backward_cpu>(m);
  implement<CombineOperator, combine_cpu>(m);
  implement<CombineBackward, combine_backward_cpu>(m);
}

}  // namespace
}  // namespace moesaic::ops
