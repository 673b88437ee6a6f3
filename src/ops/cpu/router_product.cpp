// SPDX-License-Identifier: Apache-2.0
#include "router_product.h"

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <vector>

#include "tile.h"

namespace moesaic::ops {
namespace {

constexpr int64_t kRouterRows = 512;
constexpr int64_t kRowsTogether = 4;
constexpr int64_t kCachedWeight = int64_t{16} << 10;  // Max size of cached weights in bytes.

/// Calls use(first, rows, of a group, groups): first groups of four, then single rows.
template <class Use>
void for_row_groups(int64_t first, int64_t rows, Use use) {
  const int64_t fours = rows / kRowsTogether, left = rows % kRowsTogether;
  if (fours > 0) use(first, kRowsTogether, fours);
  if (left > 0) use(first + fours * kRowsTogether, int64_t{1}, left);
}

template <class Scalar>
std::vector<Scalar*> pointers(Scalar* from, int64_t count, int64_t distance) {
  std::vector<Scalar*> list(count);
  for (int64_t i = 0; i < count; ++i) list[i] = from + i * distance;
  return list;
}

/// Packs W^T without a bias, [d + 1, stride].
template <class Scalar>
std::vector<Scalar> packed_router(const at::Tensor& weight, int64_t stride) {
  const int64_t experts = weight.size(0), width = weight.size(1);
  std::vector<Scalar> packed((width + 1) * stride, Scalar(0));
  const auto* from = weight.const_data_ptr<Scalar>();
  for (int64_t e = 0; e < experts; ++e) {
    for (int64_t k = 0; k < width; ++k) packed[k * stride + e] = from[e * width + k];
  }
  return packed;
}

}  // namespace

bool suits_router_kernel(const at::Tensor& x_Td, const at::Tensor& weight_Ed) {
  const bool floats = x_Td.scalar_type() == at::kFloat;
  if (!x_Td.is_cpu() || !(floats || x_Td.scalar_type() == at::kDouble)) return false;
  const int64_t columns =
      floats ? tile_kernels<float>().columns / 2 : tile_kernels<double>().columns / 2;
  const int64_t bytes = (weight_Ed.size(1) + 1) * columns * x_Td.element_size();
  return weight_Ed.size(0) >= 1 && weight_Ed.size(0) <= columns && bytes <= kCachedWeight &&
         x_Td.size(0) >= kRouterRows;
}

at::Tensor router_product_cpu(const at::Tensor& x_Td, const at::Tensor& weight_Ed) {
  const int64_t tokens = x_Td.size(0), width = x_Td.size(1), experts = weight_Ed.size(0);
  at::Tensor logits = at::empty({tokens, experts}, x_Td.options());
  AT_DISPATCH_FLOATING_TYPES(x_Td.scalar_type(), "router_product", [&] {
    const auto& kernels = tile_kernels<scalar_t>();
    const auto weight = packed_router<scalar_t>(weight_Ed, kernels.group_stride(experts));
    const auto* x = x_Td.const_data_ptr<scalar_t>();
    auto* to = logits.mutable_data_ptr<scalar_t>();
    at::parallel_for(0, tokens, kRouterRows, [&](int64_t begin, int64_t end) {
      for_row_groups(begin, end - begin, [&](int64_t first, int64_t rows, int64_t groups) {
        const auto from = pointers(x + first * width, groups, rows * width);
        const std::vector<const scalar_t*> b(groups, weight.data());
        kernels.multiply_groups({from.data(), b.data(), 0, groups, rows, width, experts, nullptr,
                                 to + first * experts});
      });
    });
  });
  return logits;
}

}  // namespace moesaic::ops
