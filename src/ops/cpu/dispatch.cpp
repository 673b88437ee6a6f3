// SPDX-License-Identifier: Apache-2.0
#include "moesaic/ops/dispatch.h"

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <algorithm>

#include "../check.h"
#include "large_memory.h"
#include "rows.h"

namespace moesaic::ops {
namespace {

at::Tensor dispatch_cpu(const at::Tensor& x_in, const at::Tensor& offsets_in,
                        const at::Tensor& token_in, const at::Tensor& token_offsets,
                        const at::Tensor& token_row) {
  check_dispatch(x_in, offsets_in, token_in, token_offsets, token_row);
  const at::Tensor x = x_in.contiguous();
  const at::Tensor offsets = offsets_in.contiguous();
  const at::Tensor token = token_in.contiguous();
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

at::Tensor dispatch_backward_cpu(const at::Tensor& grad_in, const at::Tensor& token_offsets_in,
                                 const at::Tensor& token_row_in) {
  check_dispatch_backward(grad_in, token_offsets_in, token_row_in);
  const at::Tensor grad_rows = grad_in.contiguous();
  const at::Tensor token_offsets = token_offsets_in.contiguous();
  const at::Tensor token_row = token_row_in.contiguous();
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
  m.impl("dispatch", dispatch_cpu);
  m.impl("dispatch_backward", dispatch_backward_cpu);
}

}  // namespace
}  // namespace moesaic::ops
