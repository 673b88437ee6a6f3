// SPDX-License-Identifier: Apache-2.0
// Groups and segments of tokens, rows of a group per expert, and row offsets, shared by the kernels
// of every device and the shape functions; all sizes are 64 bits wide.
#pragma once

#include <algorithm>

#include "moesaic/ops/route_options.h"
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
    return rule.has_capacity() ? std::min(tokens, expert_capacity(tokens, k, rule, experts))
                               : tokens;
  };
  return {groups, rows(cut.group_size), rows(cut.size(groups - 1))};
}

/// Returns the rows per expert in expert choice: the given ones, or the capacity.
inline GroupRows expert_choice_rows(const TokenGroups& cut, const RouteOptions& options,
                                    int64_t experts) {
  if (const int64_t given = options.given_rows(); given > 0) return {cut.count(), given, given};
  return capacity_rows(cut, 1, options.capacity, seen_experts(options, experts));
}

/// Returns the arrays of an unfilled routing.
template <class Scalar>
RoutingArrays<Scalar> arrays_of(const RowTensors& rows) {
  const auto& [offsets, token, gate, token_offsets, token_row] = rows;
  return {offsets.mutable_data_ptr<int32_t>(),
          token.mutable_data_ptr<int32_t>(),
          token_offsets.mutable_data_ptr<int32_t>(),
          token_row.mutable_data_ptr<int32_t>(),
          gate.template mutable_data_ptr<Scalar>(),
          token.size(0),
          token_offsets.size(0) - 1};
}

/// Sizes of a token choice, for every device.
struct TokenChoiceSizes {
  int64_t tokens, experts, k, computed;
  TokenGroups cut;
  GroupRows rows;
  bool is_limited;  ///< Whether choices can be dropped; only then do groups matter.
  int64_t bound;    ///< Upper bound A of the rows.

  TokenChoiceSizes(int64_t tokens_, int64_t experts_, const RouteOptions& options)
      : tokens(tokens_),
        experts(experts_),
        k(options.k),
        computed(computed_experts(options, experts)),
        cut(tokens, options.group_size),
        rows(capacity_rows(cut, k, options.capacity, seen_experts(options, experts))),
        is_limited(rows.has_capacity(cut)),
        bound(std::min(computed * rows.total(), tokens * std::min(k, computed))) {
    if (is_limited) return;
    cut = TokenGroups(tokens, 0);
    rows = {1, tokens, tokens};
  }
};

/// Sizes of an expert choice, for every device.
struct ExpertChoiceSizes {
  int64_t tokens, experts, computed;
  TokenGroups cut;
  GroupRows rows;

  ExpertChoiceSizes(int64_t tokens_, int64_t experts_, const RouteOptions& options)
      : tokens(tokens_),
        experts(experts_),
        computed(computed_experts(options, experts)),
        cut(tokens, options.group_size),
        rows(expert_choice_rows(cut, options, experts)) {}

  int64_t bound() const { return computed * rows.total(); }
};

}  // namespace moesaic::ops
