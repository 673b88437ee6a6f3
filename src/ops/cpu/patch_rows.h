// SPDX-License-Identifier: Apache-2.0
// Products of sparse patches with the rows of a weight matrix, a row for each number of a patch.
// Rows, sums and gradients are whole blocks of kPatchLanes floats, aligned to them.
#pragma once

#include <cstdint>

namespace moesaic::ops {

inline constexpr int64_t kPatchLanes = 16;

/// Numbers of patches that are not 0, with the row that each is multiplied with. Apart they take
/// less memory than as pairs, whose stream bounds the speed.
struct PatchEntries {
  const uint16_t* index;
  const float* value;

  PatchEntries from(int64_t begin) const { return {index + begin, value + begin}; }
};

/// Numbers of a matrix: its rows are `stride` apart, of which `blocks` blocks are used.
struct RowSize {
  int64_t stride, blocks;
};

/// Computes sums = sum over entries of value * rows[index].
void patch_products(PatchEntries entries, int64_t count, const float* rows, RowSize size,
                    float* sums);

/// Entries of several patches by row: row[i] of `count` rows has entries begin[i] to begin[i + 1],
/// whose indices are those of patches.
struct EntriesByRow {
  const int32_t *row, *begin;
  int64_t count;
  PatchEntries entries;
};

/// Adds to each row the sum over its entries of value * steps[index].
void add_to_rows(const EntriesByRow& by_row, const float* steps, RowSize size, float* rows);

/// Returns the sum over columns of a * ReLU(z).
double relu_product(const float* z, const float* a, int64_t columns);

/// Writes scale * a where z > 0, else 0.
void relu_gradient(const float* z, const float* a, float scale, int64_t columns, float* to);

}  // namespace moesaic::ops
