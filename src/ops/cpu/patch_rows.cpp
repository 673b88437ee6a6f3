// SPDX-License-Identifier: Apache-2.0
#include "patch_rows.h"

#include "vector_clones.h"

namespace moesaic::ops {
namespace {

/// Numbers that are computed at once: a vector of the largest kind, or several smaller ones.
using Block = float __attribute__((vector_size(kPatchLanes * sizeof(float))));

/// Sums over kAside entries side by side, since a sum waits for the one before it.
template <int kBlocks, int kAside>
MOESAIC_IN_CLONE void products(PatchEntries entries, int64_t count, const float* rows,
                               int64_t stride, float* to) {
  Block sums[kAside][kBlocks] = {};
  int64_t i = 0;
  for (; i + kAside <= count; i += kAside) {
    for (int u = 0; u < kAside; ++u) {
      const auto* const row = reinterpret_cast<const Block*>(rows + entries.index[i + u] * stride);
      for (int b = 0; b < kBlocks; ++b) sums[u][b] += entries.value[i + u] * row[b];
    }
  }
  for (; i < count; ++i) {
    const auto* const row = reinterpret_cast<const Block*>(rows + entries.index[i] * stride);
    for (int b = 0; b < kBlocks; ++b) sums[0][b] += entries.value[i] * row[b];
  }
  for (int u = 1; u < kAside; ++u) {
    for (int b = 0; b < kBlocks; ++b) sums[0][b] += sums[u][b];
  }
  for (int b = 0; b < kBlocks; ++b) reinterpret_cast<Block*>(to)[b] = sums[0][b];
}

template <int kBlocks>
MOESAIC_IN_CLONE void add(const EntriesByRow& by_row, const float* steps, int64_t stride,
                          float* rows) {
  for (int64_t i = 0; i < by_row.count; ++i) {
    auto* const row = reinterpret_cast<Block*>(rows + by_row.row[i] * stride);
    Block sums[kBlocks];
    for (int b = 0; b < kBlocks; ++b) sums[b] = row[b];
    for (int32_t j = by_row.begin[i]; j < by_row.begin[i + 1]; ++j) {
      const float value = by_row.entries.value[j];
      const auto* const step =
          reinterpret_cast<const Block*>(steps + by_row.entries.index[j] * stride);
      for (int b = 0; b < kBlocks; ++b) sums[b] += value * step[b];
    }
    for (int b = 0; b < kBlocks; ++b) row[b] = sums[b];
  }
}

constexpr int kMostBlocks = 4;  // In registers at once, with those of entries side by side.
constexpr int kMost = kMostBlocks * kPatchLanes;

}  // namespace

MOESAIC_VECTOR_CLONES void patch_products(PatchEntries entries, int64_t count, const float* rows,
                                          RowSize size, float* sums) {
  const int64_t stride = size.stride;
  int64_t left = size.blocks;
  for (; left >= kMostBlocks; left -= kMostBlocks, rows += kMost, sums += kMost) {
    products<kMostBlocks, 2>(entries, count, rows, stride, sums);
  }
  if (left == 3) products<3, 2>(entries, count, rows, stride, sums);
  if (left == 2) products<2, 4>(entries, count, rows, stride, sums);
  if (left == 1) products<1, 4>(entries, count, rows, stride, sums);
}

MOESAIC_VECTOR_CLONES void add_to_rows(const EntriesByRow& by_row, const float* steps, RowSize size,
                                       float* rows) {
  const int64_t stride = size.stride;
  int64_t left = size.blocks;
  for (; left >= kMostBlocks; left -= kMostBlocks, rows += kMost, steps += kMost) {
    add<kMostBlocks>(by_row, steps, stride, rows);
  }
  if (left == 3) add<3>(by_row, steps, stride, rows);
  if (left == 2) add<2>(by_row, steps, stride, rows);
  if (left == 1) add<1>(by_row, steps, stride, rows);
}

MOESAIC_VECTOR_CLONES double relu_product(const float* z, const float* a, int64_t columns) {
  float sums[kPatchLanes] = {};
  int64_t r = 0;
  for (; r + kPatchLanes <= columns; r += kPatchLanes) {
    for (int64_t i = 0; i < kPatchLanes; ++i) {
      sums[i] += (z[r + i] > 0.0F ? z[r + i] : 0.0F) * a[r + i];
    }
  }
  double sum = 0.0;
  for (; r < columns; ++r) sum += static_cast<double>((z[r] > 0.0F ? z[r] : 0.0F) * a[r]);
  if (columns < kPatchLanes) return sum;
  for (const float part : sums) sum += static_cast<double>(part);
  return sum;
}

MOESAIC_VECTOR_CLONES void relu_gradient(const float* z, const float* a, float scale,
                                         int64_t columns, float* to) {
  for (int64_t r = 0; r < columns; ++r) to[r] = z[r] > 0.0F ? scale * a[r] : 0.0F;
}

}  // namespace moesaic::ops
