// SPDX-License-Identifier: Apache-2.0
// In what order the rows of filter_experts() are computed, and in which pieces.
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
  std::vector<int32_t> row;     ///< of each position
  std::vector<int32_t> expert;  ///< whose row it is
  std::vector<int32_t> next;    ///< a token whose input is read some time after the position's
  std::vector<FilterPiece> pieces;
};

/// The rows that experts have: where the `weight_bytes` of all experts stay in a core's caches,
/// token by token; else expert by expert. `tokens` is above every token. A function of its
/// arguments alone, so that both passes agree.
FilterOrder filter_order(const at::Tensor& offsets, const at::Tensor& token, int64_t tokens,
                         int64_t weight_bytes);

}  // namespace moesaic::ops
