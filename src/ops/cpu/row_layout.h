// SPDX-License-Identifier: Apache-2.0
// Counting sort of a routing's rows: counts for each segment of tokens become offsets, so that
// segments can be filled in parallel with rows in token order.
#pragma once

#include <algorithm>
#include <cstdint>

#include "../route_plan.h"

namespace moesaic::ops {

/// Number of tokens of a segment, also the minimum worth a task.
constexpr int64_t kTokensPerSegment = 256;
constexpr int64_t kTokensPerTask = 1024;

/// Returns the number of segments for each task of at::parallel_for.
inline int64_t segment_grain(const Segments& segments) {
  const int64_t length = std::min(segments.length, segments.cut.group_size);
  return std::max<int64_t>(1, kTokensPerTask / length);
}

/// Lays out the rows of all segments. counts [segments][slots]: rows of each segment at each
/// computed expert; on return, their first row. offsets [slots + 1]: first row of each expert.
/// pulled [segments + 1]: first entry of each segment in `token_row`.
inline void lay_out_rows(int64_t segments, int64_t slots, int32_t* counts, int32_t* offsets,
                         int32_t* pulled) {
  std::fill_n(pulled, segments + 1, 0);
  int32_t row = 0;
  for (int64_t slot = 0; slot < slots; ++slot) {
    offsets[slot] = row;
    for (int64_t segment = 0; segment < segments; ++segment) {
      const int32_t count = counts[segment * slots + slot];
      counts[segment * slots + slot] = row;
      pulled[segment + 1] += count;
      row += count;
    }
  }
  offsets[slots] = row;
  for (int64_t segment = 0; segment < segments; ++segment) pulled[segment + 1] += pulled[segment];
}

/// Arrays of a routing (ops/routing.h) that a kernel fills.
template <class Scalar>
struct RoutingArrays {
  int32_t *offsets, *token, *token_offsets, *token_row;
  Scalar* gate;

  /// Clears the unused rows [row, bound).
  void clear_from(int64_t row, int64_t bound) const {
    std::fill(token + row, token + bound, 0);
    std::fill(token_row + row, token_row + bound, 0);
    std::fill(gate + row, gate + bound, Scalar(0));
  }
};

}  // namespace moesaic::ops
