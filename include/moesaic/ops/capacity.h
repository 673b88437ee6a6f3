// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace moesaic {

/// How an expert's number of rows becomes a whole one.
enum class CapacityRounding : int64_t {
  ceil,   ///< the next whole number
  round,  ///< the nearest whole number, halves to the even one
};

/// Throws Error (usage) naming the nearest valid name for an unknown one.
CapacityRounding capacity_rounding_from_name(std::string_view name);
/// The enumerators' names, in their order.
std::vector<std::string> capacity_rounding_names();

/// How many rows an expert takes from a group of tokens, see expert_capacity().
struct CapacityRule {
  double factor;              ///< The rows over those of an even load; 0: no limit.
  CapacityRounding rounding;  ///< How the product with the factor is rounded.
  int64_t multiple_of;        ///< The rows are raised to a multiple of this, at least 1.
  int64_t rows;               ///< The rows, whatever the other fields say; 0: by the other fields.

  CapacityRule(double factor_ = 0.0, CapacityRounding rounding_ = CapacityRounding::ceil,
               int64_t multiple_of_ = 4, int64_t rows_ = 0)
      : factor(factor_), rounding(rounding_), multiple_of(multiple_of_), rows(rows_) {}

  /// Whether an expert takes a limited number of rows.
  bool limits() const { return rows > 0 || factor > 0.0; }
};

/// The number of rows that an expert takes from a group: tokens * k * factor / experts, rounded,
/// then raised to a multiple (V-MoE), or `rows` where the rule has them. Throws Error where less
/// than one row is left before raising.
int64_t expert_capacity(int64_t tokens, int64_t k, const CapacityRule& rule, int64_t experts);

}  // namespace moesaic
