// SPDX-License-Identifier: Apache-2.0
// Types of the options of routings, without tensors: kernels of a GPU include this header too.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace moesaic {

/// Rule by which tokens and experts find each other, see route().
enum class RoutingKind : int64_t { token_choice, expert_choice, threshold };

/// Gate that weighs an expert's output.
enum class Gate : int64_t {
  softmax_selected,  ///< Softmax over the k experts that a token selected (pruning paper, eq. 3),
                     ///< or the tokens that an expert selected (eq. 4).
  softmax_all,       ///< Softmax over all E experts (released V-MoE; with k = 1 the switch).
  logit,             ///< The logit itself, in token choice (clusters paper's released code).
  one,               ///< Constant 1 (separately trained pMoE).
  softmax_tokens,    ///< Softmax over all tokens of the group, in expert choice (WRN-pMoE).
};

/// Throws Error (usage) naming the nearest valid name for an unknown one.
Gate gate_from_name(std::string_view name);
/// Returns the enumerators' names in their order.
std::vector<std::string> gate_names();

/// Treatment of the rows of a pruned expert by the router.
enum class PrunedSelection : int64_t {
  zero,     ///< Keeps the row: the expert is selected and gated as ever, costs nothing and adds
            ///< zero, so that the others' gates do not change (pruning paper, eq. 5).
  reroute,  ///< Removes the row: selection, softmax and capacity use the kept experts only.
};

/// Returns the enumerators' names in their order.
std::vector<std::string> pruned_selection_names();

/// Rounding of an expert's capacity to a whole number of rows.
enum class CapacityRounding : int64_t {
  ceil,   ///< Rounds up.
  round,  ///< Rounds to the nearest whole number, halves to the even one.
};

/// Returns the enumerators' names in their order.
std::vector<std::string> capacity_rounding_names();

/// Rule for the capacity of an expert in a group of tokens, see expert_capacity(), and for the
/// queue of those that want it. Defaults are no limit and V-MoE's rounding.
struct CapacityRule {
  double factor = 0.0;  ///< Capacity relative to an even load; 0: no limit.
  CapacityRounding rounding = CapacityRounding::ceil;  ///< Rounding of the product with the factor.
  int64_t multiple_of = 4;      ///< The capacity is raised to a multiple of this, at least 1.
  int64_t rows = 0;             ///< Capacity in rows, instead of a factor; 0: by the factor.
  bool batch_priority = false;  ///< Tokens queue by falling first gate instead of by position.
  /// Factor outside of training, in place of the capacity there, by which a router evaluates; 0:
  /// no token is dropped; unset: the same capacity. Operators ignore it.
  std::optional<double> evaluation_factor;

  /// Returns whether the capacity of an expert is limited.
  bool has_capacity() const { return rows > 0 || factor > 0.0; }
};

/// Returns the capacity of an expert in a group: tokens * k * factor / experts, rounded, then
/// raised to a multiple (V-MoE), or `rows` where the rule sets it. Throws Error where less
/// than one row is left before raising.
int64_t expert_capacity(int64_t tokens, int64_t k, const CapacityRule& rule, int64_t experts);

/// Options of a routing: the settings of a configuration, the arguments of the operators and what
/// an exported network writes out.
///
/// To add an option, edit four places: this struct; the schema (src/ops/route_operators.cpp), where
/// Python sees it, at the end and with the same default (but for the gate of expert choice, which
/// is softmax_selected there); pack() and unpack() (src/ops/route_arguments.h); and the composite
/// (src/ops/route.cpp), which a kernel without the option leaves such calls to. A gate is one more
/// name (src/ops/route_options.cpp) and one more text of exports (src/nn/script/).
struct RouteOptions {
  RoutingKind kind = RoutingKind::token_choice;
  int64_t k = 2;                  ///< Number of experts that a token selects, in token choice.
  int64_t l = 0;                  ///< Number of tokens of a group that an expert selects, in expert
                                  ///< choice; 0: as many as its capacity.
  double threshold = 0.0;         ///< Smallest logit with which an expert takes a token.
  Gate gate = Gate::softmax_all;  ///< Gate that weighs the outputs; with a threshold it is 1.
  CapacityRule capacity;          ///< Limit of an expert's rows; with a threshold there is none.
  int64_t group_size = 0;         ///< Tokens among which a capacity counts, or experts choose; the
                                  ///< last group may be smaller. 0: all tokens of the call.
  std::vector<int64_t> kept;      ///< Ids of the computed experts, ascending; empty: all.
  PrunedSelection pruned = PrunedSelection::zero;  ///< Treatment of the others.

  /// Returns whether tokens choose a number of experts.
  bool is_token_choice() const { return kind == RoutingKind::token_choice; }
  /// Returns whether experts choose tokens.
  bool is_expert_choice() const { return kind == RoutingKind::expert_choice; }
  /// Returns the number k of experts that each token selects, 0 where it is no token choice.
  int64_t num_selected_experts() const { return is_token_choice() ? k : 0; }
  /// Returns the rows of an expert in a group that are given instead of a factor: `l`, which only
  /// expert choice has, or the capacity in rows; 0: none are.
  int64_t given_rows() const { return is_expert_choice() && l != 0 ? l : capacity.rows; }
  /// Returns whether only kept experts are selected, and some are not. By a threshold both ways
  /// agree.
  bool is_rerouted() const {
    return !kept.empty() && pruned == PrunedSelection::reroute && kind != RoutingKind::threshold;
  }
};

}  // namespace moesaic
