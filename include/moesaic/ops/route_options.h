// SPDX-License-Identifier: Apache-2.0
// Types of the options of routings, without tensors: kernels of a GPU include this header too.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace moesaic {

/// Gate that weighs an expert's output in token choice.
enum class Gate : int64_t {
  softmax_selected,  ///< Softmax over the k selected experts, so that a token's gates sum to 1
                     ///< (pruning paper, eq. 3).
  softmax_all,       ///< Softmax over all E experts, of which the k largest are taken (released
                     ///< V-MoE, and with k = 1 the switch).
  logit,             ///< The selected expert's logit (clusters paper's released code).
  one,               ///< Constant 1.
};

/// Throws Error (usage) naming the nearest valid name for an unknown one.
Gate gate_from_name(std::string_view name);
/// Returns the enumerators' names in their order.
std::vector<std::string> gate_names();

/// Gate that weighs an expert's output in expert choice.
enum class ExpertGate : int64_t {
  softmax_selected,  ///< Softmax over the tokens that the expert selected (pruning paper, eq. 4).
  softmax_tokens,    ///< Softmax over all tokens of the group, selected or not (WRN-pMoE).
  softmax_experts,   ///< Softmax over the experts, for each token (V-MoE's expert choice).
  one,               ///< Constant 1 (separately trained pMoE).
};

/// Throws Error (usage) naming the nearest valid name for an unknown one.
ExpertGate expert_gate_from_name(std::string_view name);
/// Returns the enumerators' names in their order.
std::vector<std::string> expert_gate_names();

/// Treatment of the rows of a pruned expert by the router.
enum class PrunedSelection : int64_t {
  zero,     ///< Keeps the row: the expert is selected and gated as ever, costs nothing and adds
            ///< zero, so that the others' gates do not change (pruning paper, eq. 5).
  reroute,  ///< Removes the row: selection, softmax and capacity use the kept experts only.
};

/// Throws Error (usage) naming the nearest valid name for an unknown one.
PrunedSelection pruned_selection_from_name(std::string_view name);
/// Returns the enumerators' names in their order.
std::vector<std::string> pruned_selection_names();

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

  /// By default there is no limit; other defaults are V-MoE's.
  CapacityRule(double factor_ = 0.0, CapacityRounding rounding_ = CapacityRounding::ceil,
               int64_t multiple_of_ = 4, int64_t rows_ = 0)
      : factor(factor_), rounding(rounding_), multiple_of(multiple_of_), rows(rows_) {}

  /// Returns whether the capacity of an expert is limited.
  bool has_capacity() const { return rows > 0 || factor > 0.0; }
};

/// Returns the capacity of an expert in a group: tokens * k * factor / experts, rounded, then
/// raised to a multiple (V-MoE), or `rows` where the rule sets it. Throws Error where less
/// than one row is left before raising.
int64_t expert_capacity(int64_t tokens, int64_t k, const CapacityRule& rule, int64_t experts);

}  // namespace moesaic
