// SPDX-License-Identifier: Apache-2.0
// Cuts the rows of each expert into tiles, on the device and without a list. The tiles of expert e
// begin at number offsets[e] / height + e: numbers ascend, at most one per expert is unused, and
// rows / height + experts of them suffice for any offsets.
#pragma once

#include <cstdint>

#include "block.h"

namespace moesaic::ops::kernels {

/// Rows [begin, end) of one expert; empty for an unused number.
struct RowTile {
  int32_t expert, begin, end;

  MOESAIC_INLINE bool empty() const { return begin >= end; }
};

MOESAIC_INLINE int64_t row_tile_bound(int64_t rows, int64_t experts, int height) {
  return experts > 0 ? rows / height + experts : 0;
}

MOESAIC_INLINE int64_t first_row_tile(const int32_t* offsets, int32_t expert, int height) {
  return offsets[expert] / height + expert;
}

MOESAIC_INLINE RowTile row_tile(const int32_t* offsets, int32_t experts, int height,
                                int64_t number) {
  int32_t low = 0, high = experts;  // Search: tiles of `low` begin at or before `number`.
  while (high - low > 1) {
    const int32_t middle = (low + high) / 2;
    if (first_row_tile(offsets, middle, height) <= number) {
      low = middle;
    } else {
      high = middle;
    }
  }
  const int64_t within = number - first_row_tile(offsets, low, height);
  const int64_t end = offsets[low + 1];
  const int64_t begin = min<int64_t>(offsets[low] + within * height, end);
  return {low, static_cast<int32_t>(begin),
          static_cast<int32_t>(min<int64_t>(begin + height, end))};
}

}  // namespace moesaic::ops::kernels
