// SPDX-License-Identifier: Apache-2.0
// Conversion of the options of every routing operator to arguments of the dispatcher and back, the
// only list of them beside the schema. Schemas take numbers for enumerators and `reroute` for
// PrunedSelection.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/SymInt.h>
#include <c10/util/ArrayRef.h>

#include <algorithm>
#include <array>
#include <utility>

#include "moesaic/ops/enum_names.h"
#include "moesaic/ops/route.h"
#include "operator.h"

namespace moesaic::ops {

inline PrunedSelection pruned_selection(bool reroute) {
  return reroute ? PrunedSelection::reroute : PrunedSelection::zero;
}

/// The gates of expert choice in the order of the numbers that its schema takes, and their names.
inline constexpr std::array kExpertGates = {Gate::softmax_selected, Gate::softmax_tokens,
                                            Gate::softmax_all, Gate::one};
inline const std::vector<std::string> kExpertGateNames = {"softmax_selected", "softmax_tokens",
                                                          "softmax_experts", "one"};

/// Options of a call of an operator, whose sizes may be symbols of a compiler that traces it. They
/// are made from options, and are options again where the sizes are numbers.
struct RouteCall {
  RouteOptions known;  ///< All but the sizes.
  c10::SymInt group_size, rows;

  RouteCall(RouteOptions options)
      : known(std::move(options)), group_size(known.group_size), rows(known.given_rows()) {}
  RouteCall(RouteOptions known_, c10::SymInt group_size_, c10::SymInt rows_)
      : known(std::move(known_)), group_size(std::move(group_size_)), rows(std::move(rows_)) {}
  operator RouteOptions() const {
    RouteOptions options = known;
    options.group_size = group_size.expect_int();
    options.l = 0;
    options.capacity.rows = rows.expect_int();
    return options;
  }
};

struct TokenChoicePacking {
  static constexpr const char* kName = "moesaic::route_token_choice";

  static void check(const at::Tensor& logits, const RouteCall& call);
  static auto pack(const RouteCall& call) {
    const RouteOptions& options = call.known;
    const CapacityRule& capacity = options.capacity;
    return std::make_tuple(
        options.k, static_cast<int64_t>(options.gate), capacity.factor, call.group_size,
        options.kept, capacity.batch_priority, options.pruned == PrunedSelection::reroute,
        static_cast<int64_t>(capacity.rounding), capacity.multiple_of, call.rows);
  }
  static RouteCall unpack(int64_t k, int64_t gate, double capacity_factor, c10::SymInt group_size,
                          at::IntArrayRef kept, bool batch_priority, bool reroute,
                          int64_t capacity_rounding, int64_t capacity_multiple_of,
                          c10::SymInt capacity) {
    return {{.k = k,
             .gate = static_cast<Gate>(gate),
             .capacity = {.factor = capacity_factor,
                          .rounding = static_cast<CapacityRounding>(capacity_rounding),
                          .multiple_of = capacity_multiple_of,
                          .batch_priority = batch_priority},
             .kept = kept.vec(),
             .pruned = pruned_selection(reroute)},
            std::move(group_size),
            std::move(capacity)};
  }
};

/// The gradient takes the options that it depends on; unpack() leaves the others at their defaults.
struct TokenChoiceBackwardPacking {
  static constexpr const char* kName = "moesaic::route_token_choice_backward";

  static void check(const at::Tensor& grad_gate, const at::Tensor& logits, const at::Tensor& choice,
                    const at::Tensor& choice_row, const RouteOptions& options);
  static auto pack(const RouteCall& call) {
    return std::make_tuple(static_cast<int64_t>(call.known.gate), call.known.kept,
                           call.known.pruned == PrunedSelection::reroute);
  }
  static RouteCall unpack(int64_t gate, at::IntArrayRef kept, bool reroute) {
    return RouteOptions{
        .gate = static_cast<Gate>(gate), .kept = kept.vec(), .pruned = pruned_selection(reroute)};
  }
};

struct ExpertChoicePacking {
  static constexpr const char* kName = "moesaic::route_expert_choice";

  static void check(const at::Tensor& logits, const RouteCall& call);
  static auto pack(const RouteCall& call) {
    const RouteOptions& options = call.known;
    const int64_t gate = std::ranges::find(kExpertGates, options.gate) - kExpertGates.begin();
    return std::make_tuple(call.rows, options.capacity.factor, call.group_size, gate, options.kept,
                           options.pruned == PrunedSelection::reroute,
                           static_cast<int64_t>(options.capacity.rounding),
                           options.capacity.multiple_of);
  }
  static RouteCall unpack(c10::SymInt rows, double capacity_factor, c10::SymInt group_size,
                          int64_t gate, at::IntArrayRef kept, bool reroute,
                          int64_t capacity_rounding, int64_t capacity_multiple_of) {
    check_enum("route_expert_choice", "gate", gate, kExpertGateNames);
    return {{.kind = RoutingKind::expert_choice,
             .gate = kExpertGates[static_cast<size_t>(gate)],
             .capacity = {.factor = capacity_factor,
                          .rounding = static_cast<CapacityRounding>(capacity_rounding),
                          .multiple_of = capacity_multiple_of},
             .kept = kept.vec(),
             .pruned = pruned_selection(reroute)},
            std::move(group_size),
            std::move(rows)};
  }
};

/// The gradient takes the same options.
struct ExpertChoiceBackwardPacking : ExpertChoicePacking {
  static constexpr const char* kName = "moesaic::route_expert_choice_backward";

  static void check(const at::Tensor& grad_gate, const at::Tensor& logits, const at::Tensor& token,
                    const at::Tensor& gates, const RouteCall& call);
};

struct AdaptivePacking {
  static constexpr const char* kName = "moesaic::route_adaptive";

  static void check(const at::Tensor& logits, const RouteOptions& options);
  static auto pack(const RouteOptions& options) {
    return std::make_tuple(options.threshold, options.kept);
  }
  static RouteOptions unpack(double threshold, at::IntArrayRef kept) {
    return {.kind = RoutingKind::threshold, .threshold = threshold, .kept = kept.vec()};
  }
};

/// Tensors offsets, token, gate, token_offsets and token_row of a Routing.
using RowTensors = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor>;
/// RowTensors, then `choice` and choice_row [T, k]: the row of each choice, -1 where it is dropped
/// or its expert is not computed.
using ChoiceTensors =
    std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

/// Returns tensors of a routing of logits to `computed` experts, not yet filled.
RowTensors unfilled_rows(const at::Tensor& logits_TE, const c10::SymInt& computed,
                         const c10::SymInt& bound);

using TokenChoiceOperator = OptionsOperator<TokenChoicePacking, ChoiceTensors(const at::Tensor&)>;
/// Gradient operator of grad_gate, logits, choice and choice_row.
using TokenChoiceBackward =
    OptionsOperator<TokenChoiceBackwardPacking, at::Tensor(const at::Tensor&, const at::Tensor&,
                                                           const at::Tensor&, const at::Tensor&)>;
using ExpertChoiceOperator = OptionsOperator<ExpertChoicePacking, RowTensors(const at::Tensor&)>;
/// Gradient operator of grad_gate, logits, token and the gates.
using ExpertChoiceBackward =
    OptionsOperator<ExpertChoiceBackwardPacking, at::Tensor(const at::Tensor&, const at::Tensor&,
                                                            const at::Tensor&, const at::Tensor&)>;
using AdaptiveOperator = OptionsOperator<AdaptivePacking, RowTensors(const at::Tensor&)>;

/// Returns the number of experts that are computed.
template <class Int>
Int computed_experts(const RouteOptions& options, const Int& experts) {
  return options.kept.empty() ? experts : Int(static_cast<int64_t>(options.kept.size()));
}
/// Returns the number of experts that selection, softmax and capacity see.
template <class Int>
Int seen_experts(const RouteOptions& options, const Int& experts) {
  return options.pruned == PrunedSelection::reroute ? computed_experts(options, experts) : experts;
}

}  // namespace moesaic::ops
