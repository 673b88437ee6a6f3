// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace moesaic {

enum class CapacityRounding : int64_t {
  ceil,   ///< up
  round,  ///< to the nearest, halves to the even number
};

/// Throws Error (usage) naming the nearest valid name for an unknown one.
CapacityRounding capacity_rounding_from_name(std::string_view name);
/// Names in the order of the enumerators.
std::vector<std::string> capacity_rounding_names();

/// How many rows an expert takes from a group of tokens, see expert_capacity().
struct CapacityRule {
  double factor;  ///< 0: as many as want to; else rows over an even share
  CapacityRounding rounding;
  int64_t multiple_of;  ///< at least 1
  int64_t rows;         ///< so many, whatever the others say; 0: as they say

  CapacityRule(double factor_ = 0.0, CapacityRounding rounding_ = CapacityRounding::ceil,
               int64_t multiple_of_ = 4, int64_t rows_ = 0)
      : factor(factor_), rounding(rounding_), multiple_of(multiple_of_), rows(rows_) {}

  bool limits() const { return rows > 0 || factor > 0.0; }
};

/// Rows that an expert takes per group: tokens * k * factor / experts, rounded, then raised to a
/// multiple (V-MoE), or `rows` where the rule has them. Throws Error where less than one row is
/// left before raising.
int64_t expert_capacity(int64_t tokens, int64_t k, const CapacityRule& rule, int64_t experts);

}  // namespace moesaic
