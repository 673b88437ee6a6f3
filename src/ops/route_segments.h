// SPDX-License-Identifier: Apache-2.0
// Groups and segments of tokens, and rows of a group per expert. Kernels of every device share this
// header, so it is C++17 without LibTorch; all sizes are 64 bits wide.
#pragma once

#include <algorithm>
#include <cstdint>

#include "moesaic/ops/function_attributes.h"

namespace moesaic::ops {

/// Groups of `group_size` tokens; the last may be smaller.
struct TokenGroups {
  int64_t tokens, group_size;

  /// A group_size_ of 0 makes one group of all tokens.
  TokenGroups(int64_t tokens_, int64_t group_size_)
      : tokens(tokens_), group_size(std::max<int64_t>(tokens_, 1)) {
    if (group_size_ > 0) group_size = std::min(group_size, group_size_);
  }

  MOESAIC_HD int64_t count() const {
    return tokens / group_size + (tokens % group_size != 0 ? 1 : 0);
  }
  MOESAIC_HD int64_t begin(int64_t group) const { return group * group_size; }
  MOESAIC_HD int64_t end(int64_t group) const {
    const int64_t to = begin(group) + group_size;
    return to < tokens ? to : tokens;
  }
  MOESAIC_HD int64_t size(int64_t group) const { return end(group) - begin(group); }
  MOESAIC_HD int64_t of(int64_t token) const { return token / group_size; }
};

/// Rows of every group for an expert: `full`, and `last` for the last group.
struct GroupRows {
  int64_t groups, full, last;

  MOESAIC_HD int64_t of(int64_t group) const { return group + 1 < groups ? full : last; }
  int64_t total() const { return groups > 0 ? (groups - 1) * full + last : 0; }
  bool has_capacity(const TokenGroups& cut) const {
    return groups > 0 && (last < cut.size(groups - 1) || (groups > 1 && full < cut.group_size));
  }
};

/// Ranges of at most `length` tokens, none across two groups, each processed by one task. They
/// depend on sizes only, never on the number of threads.
struct Segments {
  TokenGroups cut;
  int64_t length, per_group;

  Segments(const TokenGroups& cut_, int64_t length_)
      : cut(cut_), length(length_), per_group((cut_.group_size + length_ - 1) / length_) {}

  MOESAIC_HD int64_t first_of(int64_t group) const { return group * per_group; }
  MOESAIC_HD int64_t count() const {
    const int64_t groups = cut.count();
    if (groups == 0) return 0;
    return first_of(groups - 1) + (cut.size(groups - 1) + length - 1) / length;
  }
  MOESAIC_HD int64_t group(int64_t segment) const { return segment / per_group; }
  MOESAIC_HD int64_t begin(int64_t segment) const {
    return cut.begin(group(segment)) + (segment % per_group) * length;
  }
  MOESAIC_HD int64_t end(int64_t segment) const {
    const int64_t to = begin(segment) + length, limit = cut.end(group(segment));
    return to < limit ? to : limit;
  }
};

/// Arrays of a routing (ops/routing.h) that a kernel fills, for `bound` rows.
template <class Scalar>
struct RoutingArrays {
  int32_t *offsets, *token, *token_offsets, *token_row;
  Scalar* gate;
  int64_t bound, tokens;
};

/// Returns how many of `count` entries find room in a queue after `queued` earlier ones.
MOESAIC_HD inline int64_t accepted(int64_t queued, int64_t count, int64_t capacity) {
  const int64_t room = capacity > queued ? capacity - queued : 0;
  return count < room ? count : room;
}

}  // namespace moesaic::ops
