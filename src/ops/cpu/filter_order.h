// SPDX-License-Identifier: Apache-2.0
// Order and pieces in which the rows of filter_experts() are computed.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace moesaic::ops {

/// Positions [begin, end) of an order, whose experts are [expert, expert + experts).
struct FilterPiece {
  int64_t begin, end, expert, experts;
};

struct FilterOrder {
  std::vector<int32_t> row;     ///< Row of each position.
  std::vector<int32_t> expert;  ///< Expert of that row.
  std::vector<int32_t> next;    ///< Token whose input to prefetch at the position.
  std::vector<FilterPiece> pieces;
};

/// Returns the order of the rows: by token where the `weight_bytes` of all experts fit a core's
/// caches, else by expert. `tokens` is above every token. The order depends on the arguments only,
/// so that both passes agree.
FilterOrder filter_order(const at::Tensor& offsets, const at::Tensor& token, int64_t tokens,
                         int64_t weight_bytes);

}  // namespace moesaic::ops
