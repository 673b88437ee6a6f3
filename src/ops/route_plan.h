// SPDX-License-Identifier: Apache-2.0
// How tokens are cut into groups and how many rows a group may give to an expert. Shared by the
// kernels and the shape function.
#pragma once

#include <algorithm>
#include <cstdint>

#include "moesaic/ops/route.h"

namespace moesaic::ops {

struct TokenGroups {
  int64_t tokens, group_size;

  TokenGroups(int64_t tokens_, int64_t group_size_)
      : tokens(tokens_),
        group_size(group_size_ > 0 ? group_size_ : std::max<int64_t>(tokens_, 1)) {}

  int64_t count() const { return (tokens + group_size - 1) / group_size; }
  int64_t begin(int64_t group) const { return group * group_size; }
  int64_t end(int64_t group) const { return std::min(tokens, begin(group) + group_size); }
  int64_t size(int64_t group) const { return end(group) - begin(group); }
};

/// The static bound A of the rows of a token-choice routing.
inline int64_t token_choice_row_bound(int64_t tokens, int64_t k, int64_t experts, int64_t kept,
                                      double capacity_factor, int64_t group_size) {
  const int64_t choices = tokens * std::min(k, kept);
  if (capacity_factor <= 0.0) return choices;
  const TokenGroups groups(tokens, group_size);
  int64_t bound = 0;
  for (int64_t group = 0; group < groups.count(); ++group) {
    const int64_t capacity = expert_capacity(groups.size(group), k, capacity_factor, experts);
    bound += kept * std::min(capacity, groups.size(group));
  }
  return std::min(bound, choices);
}

}  // namespace moesaic::ops
