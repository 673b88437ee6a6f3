// SPDX-License-Identifier: Apache-2.0
// Groups and segments of tokens, rows of a group per expert, and row offsets, shared by the kernels
// of every device and the shape functions; all sizes are 64 bits wide.
#pragma once

#include <algorithm>
#include <cstdint>

#include "moesaic/ops/capacity.h"
#include "route_arguments.h"
#include "route_segments.h"

namespace moesaic::ops {

/// Returns min(capacity, tokens) of every group, see expert_capacity(); without a limit the number
/// of tokens.
inline GroupRows capacity_rows(const TokenGroups& cut, int64_t k, const CapacityRule& rule,
                               int64_t experts) {
  const int64_t groups = cut.count();
  if (groups == 0) return {0, 0, 0};
  const auto rows = [&](int64_t tokens) {
    return rule.limits() ? std::min(tokens, expert_capacity(tokens, k, rule, experts)) : tokens;
  };
  return {groups, rows(cut.group_size), rows(cut.size(groups - 1))};
}

/// Returns the rows per expert in expert choice: `rows`, or the capacity where it is 0.
inline GroupRows expert_choice_rows(const TokenGroups& cut, const ExpertChoiceOptions& options,
                                    int64_t experts) {
  if (options.rows > 0) return {cut.count(), options.rows, options.rows};
  return capacity_rows(cut, 1, capacity_of(options), seen_experts(options, experts));
}

/// Returns the upper bound A of the rows of a token-choice routing.
inline int64_t token_choice_row_bound(const TokenGroups& cut, int64_t k, int64_t computed,
                                      const GroupRows& rows) {
  return std::min(computed * rows.total(), cut.tokens * std::min(k, computed));
}

}  // namespace moesaic::ops
