// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace moesaic {

/// Rounding of an expert's capacity to a whole number of rows.
enum class CapacityRounding : int64_t {
  ceil,   ///< Rounds up.
  round,  ///< Rounds to the nearest whole number, halves to the even one.
};

/// Throws Error (usage) naming the nearest valid name for an unknown one.
CapacityRounding capacity_rounding_from_name(std::string_view name);
/// Returns the enumerators' names in their order.
std::vector<std::string> capacity_rounding_names();

/// Rule for the capacity of an expert in a group of tokens, see expert_capacity().
struct CapacityRule {
  double factor;              ///< Capacity relative to an even load; 0 means no limit.
  CapacityRounding rounding;  ///< Rounding of the product with the factor.
  int64_t multiple_of;        ///< The capacity is raised to a multiple of this, at least 1.
  int64_t rows;               ///< Capacity in rows, overriding the other fields; 0 means unset.

  CapacityRule(double factor_ = 0.0, CapacityRounding rounding_ = CapacityRounding::ceil,
               int64_t multiple_of_ = 4, int64_t rows_ = 0)
      : factor(factor_), rounding(rounding_), multiple_of(multiple_of_), rows(rows_) {}

  /// Returns whether the capacity of an expert is limited.
  bool limits() const { return rows > 0 || factor > 0.0; }
};

/// Returns the capacity of an expert in a group: tokens * k * factor / experts, rounded, then
/// raised to a multiple (V-MoE), or `rows` where the rule sets it. Throws Error where less than one
/// row is left before raising.
int64_t expert_capacity(int64_t tokens, int64_t k, const CapacityRule& rule, int64_t experts);

}  // namespace moesaic
