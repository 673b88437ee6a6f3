// SPDX-License-Identifier: Apache-2.0
#include "moesaic/ops/dispatch.h"

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <algorithm>

#include "../mlp_operators.h"
#include "large_memory.h"
#include "rows.h"

namespace moesaic::ops {
namespace {

at::Tensor dispatch_cpu(const DispatchArguments& in) {
  const at::Tensor x = in.x.contiguous();
  const at::Tensor offsets = in.offsets.contiguous();
  const at::Tensor token = in.token.contiguous();
  const int64_t width = x.size(1);
  const int64_t bound = token.size(0);
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

at::Tensor dispatch_backward_cpu(const DispatchBackwardArguments& in) {
  const at::Tensor grad_rows = in.grad_rows.contiguous();
  const at::Tensor token_offsets = in.token_offsets.contiguous();
  const at::Tensor token_row = in.token_row.contiguous();
  const int64_t tokens = token_offsets.size(0) - 1;
  const int64_t width = grad_rows.size(1);
  at::Tensor grad_x = empty_large({tokens, width}, grad_rows.options());
  const auto* begins = token_offsets.const_data_ptr<int32_t>();
  const auto* row_of = token_row.const_data_ptr<int32_t>();
  AT_DISPATCH_FLOATING_TYPES_AND2(
      at::kBFloat16, at::kHalf, grad_rows.scalar_type(), "dispatch_backward", [&] {
        const auto* from = grad_rows.const_data_ptr<scalar_t>();
        auto* to = grad_x.mutable_data_ptr<scalar_t>();
        at::parallel_for(0, tokens, kRowsPerTask, [&](int64_t begin, int64_t end) {
          for (int64_t t = begin; t < end; ++t) {
            const int32_t* rows = row_of + begins[t];
            weighted_sum(
                to + t * width, width, begins[t + 1] - begins[t],
                [&](int32_t i) { return from + rows[i] * width; }, [](int32_t) { return 1; });
          }
        });
      });
  return grad_x;
}

TORCH_LIBRARY_IMPL(moesaic, CPU, m) {
  m.impl("dispatch", DispatchOperator::run<dispatch_cpu>);
  m.impl("dispatch_backward", DispatchBackward::run<dispatch_backward_cpu>);
}

}  // namespace
}  // namespace moesaic::ops
