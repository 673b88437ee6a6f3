// SPDX-License-Identifier: Apache-2.0
#include "moesaic/ops/parallel_patches.h"

#include <torch/torch.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "check.h"
#include "moesaic/base/error.h"

namespace moesaic {
namespace {

constexpr int64_t kSampledPatches = 1024, kMostDirections = 64, kFewestOfSample = 4;

double rounding_of(const at::Tensor& x) {
  return x.scalar_type() == at::kFloat ? std::numeric_limits<float>::epsilon()
                                       : std::numeric_limits<double>::epsilon();
}

/// Rows of x [N, d] of norm 1, without those of norm 0.
at::Tensor unit_rows(const at::Tensor& x) {
  const at::Tensor wide = x.to(at::kDouble);
  const at::Tensor norm = wide.norm(2, 1, true);
  const at::Tensor some = norm.squeeze(1).gt(0).nonzero().squeeze(1);
  return wide.index_select(0, some) / norm.index_select(0, some);
}

/// [D, d] float64: directions that several of the rows share.
at::Tensor shared_directions(const at::Tensor& rows, double rounding) {
  const at::Tensor unit = unit_rows(rows);
  const double max = 1.0 - std::max(64 * rounding * rounding, 1e-14);
  const at::Tensor same = unit.mm(unit.t()).abs().gt(max).contiguous();
  const at::Tensor count = same.sum(1);
  const bool* const is_same = same.const_data_ptr<bool>();
  const int64_t n = unit.size(0);
  std::vector<char> taken(static_cast<size_t>(n), 0);
  std::vector<int64_t> chosen;
  for (int64_t i = 0; i < n; ++i) {
    if (taken[i] != 0 || count.const_data_ptr<int64_t>()[i] < kFewestOfSample) continue;
    for (int64_t j = i; j < n; ++j) taken[j] |= is_same[i * n + j] ? 1 : 0;
    chosen.push_back(i);
  }
  return unit.index_select(0, torch::tensor(chosen, at::kLong));
}

/// Some of the rows, in steps of the golden ratio, in which no regular order of theirs is hidden.
at::Tensor sample_of(const at::Tensor& rows) {
  if (rows.size(0) <= kSampledPatches) return rows;
  const at::Tensor places = at::arange(kSampledPatches, at::kDouble).mul(0.6180339887498949).frac();
  return rows.index_select(0, places.mul(static_cast<double>(rows.size(0))).to(at::kLong));
}

}  // namespace

std::optional<ParallelPatches> find_parallel_patches(const at::Tensor& x_TPd) {
  ops::check_shape("find_parallel_patches", "x", x_TPd, {-1, -1, -1});
  ops::check_floating("find_parallel_patches", "x", x_TPd);
  if (!x_TPd.is_cpu()) {
    fail("find_parallel_patches: x must be on the CPU, found it on {}", c10::str(x_TPd.device()));
  }
  const torch::NoGradGuard no_grad;
  const at::Tensor patches = x_TPd.reshape({-1, x_TPd.size(2)});
  const int64_t count = patches.size(0);
  if (count == 0) return std::nullopt;
  const double rounding = rounding_of(x_TPd);
  const at::Tensor directions =
      shared_directions(sample_of(patches), rounding).to(x_TPd.scalar_type());
  if (directions.size(0) == 0 || directions.size(0) > kMostDirections) return std::nullopt;

  const at::Tensor products = patches.to(at::kDouble).mm(directions.to(at::kDouble).t());
  const at::Tensor best = products.abs().argmax(1, true);
  const at::Tensor scale = products.gather(1, best).to(x_TPd.scalar_type());
  const at::Tensor off = (patches - scale * directions.index_select(0, best.squeeze(1))).abs();
  // Each number is rounded, and so are the products, in float64.
  const double allowed =
      4 * rounding + static_cast<double>(x_TPd.size(2)) * std::numeric_limits<double>::epsilon();
  const at::Tensor parallel =
      std::get<0>(off.max(1)).le(std::get<0>(patches.abs().max(1)) * allowed);
  const at::Tensor others = parallel.logical_not().nonzero().squeeze(1);
  if (others.size(0) * 2 > count) return std::nullopt;

  at::Tensor which = best.squeeze(1).to(at::kInt);
  which.index_put_({others}, -1 - at::arange(others.size(0), at::kInt));
  const at::Tensor known = scale.squeeze(1) * parallel.to(scale.scalar_type());
  const auto shape = {x_TPd.size(0), x_TPd.size(1)};
  return ParallelPatches{directions, which.view(shape), known.view(shape),
                         patches.index_select(0, others)};
}

}  // namespace moesaic
