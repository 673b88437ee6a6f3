// SPDX-License-Identifier: Apache-2.0
#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include "../route.h"
#include "moesaic/ops/softmax_exp.h"

namespace moesaic::ops {
namespace {

constexpr int64_t kNumbersPerTask = 8192;

template <class Scalar>
MOESAIC_IN_CLONE void terms_of(const Scalar* __restrict from, int64_t count,
                               Scalar* __restrict to) {
  for (int64_t i = 0; i < count; ++i) to[i] = softmax_exp(from[i]);
}

MOESAIC_VECTOR_CLONES void write_terms(const float* from, int64_t count, float* to) {
  terms_of(from, count, to);
}
void write_terms(const double* from, int64_t count, double* to) {
  terms_of(from, count, to);
}

}  // namespace

at::Tensor softmax_exp(const at::Tensor& x) {
  if (!x.is_cpu()) return x.exp();
  const at::Tensor from = x.contiguous(), terms = at::empty_like(from);
  AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "softmax_exp", [&] {
    const auto* read = from.const_data_ptr<scalar_t>();
    auto* written = terms.mutable_data_ptr<scalar_t>();
    at::parallel_for(0, from.numel(), kNumbersPerTask, [&](int64_t begin, int64_t end) {
      write_terms(read + begin, end - begin, written + begin);
    });
  });
  return terms;
}

at::Tensor sum_in_order(const at::Tensor& x) {
  if (!x.is_cpu()) return x.sum({-1}, /*keepdim=*/true);
  const at::Tensor from = x.contiguous();
  const int64_t width = from.size(-1);
  std::vector<int64_t> shape = from.sizes().vec();
  shape.back() = 1;
  const at::Tensor sums = at::empty(shape, from.options());
  AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "sum_in_order", [&] {
    const auto* read = from.const_data_ptr<scalar_t>();
    auto* written = sums.mutable_data_ptr<scalar_t>();
    const int64_t grain = std::max<int64_t>(1, kNumbersPerTask / std::max<int64_t>(1, width));
    at::parallel_for(0, sums.numel(), grain, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        scalar_t sum = 0;
        for (int64_t i = row * width; i < (row + 1) * width; ++i) sum += read[i];
        written[row] = sum;
      }
    });
  });
  return sums;
}

}  // namespace moesaic::ops
