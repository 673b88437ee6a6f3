// SPDX-License-Identifier: Apache-2.0
// Conversion of the options of every routing operator to arguments of the dispatcher and back, the
// only list of them beside the schema. Schemas take numbers for enumerators and `reroute` for
// PrunedSelection.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/SymInt.h>
#include <c10/util/ArrayRef.h>

#include <utility>

#include "moesaic/ops/route_adaptive.h"
#include "moesaic/ops/route_expert_choice.h"
#include "moesaic/ops/route_token_choice.h"
#include "operator.h"

namespace moesaic::ops {

inline PrunedSelection pruned_selection(bool reroute) {
  return reroute ? PrunedSelection::reroute : PrunedSelection::zero;
}

/// Returns the number of rows that options give in place of a capacity factor; 0: by the factor.
inline int64_t& given_rows(TokenChoiceOptions& options) {
  return options.capacity;
}
inline int64_t& given_rows(ExpertChoiceOptions& options) {
  return options.rows;
}

/// Options of a call of an operator, whose sizes may be symbols of a compiler that traces it. They
/// are made from options, and are options again where the sizes are numbers.
template <class Options>
struct RouteCall {
  Options known;  ///< All but the sizes.
  c10::SymInt group_size, rows;

  RouteCall(Options options) : known(std::move(options)) {
    group_size = known.group_size;
    rows = given_rows(known);
  }
  RouteCall(Options known_, c10::SymInt group_size_, c10::SymInt rows_)
      : known(std::move(known_)), group_size(std::move(group_size_)), rows(std::move(rows_)) {}
  operator Options() const {
    Options options = known;
    options.group_size = group_size.expect_int();
    given_rows(options) = rows.expect_int();
    return options;
  }
};
using TokenChoiceCall = RouteCall<TokenChoiceOptions>;
using ExpertChoiceCall = RouteCall<ExpertChoiceOptions>;

struct TokenChoicePacking {
  static constexpr const char* kName = "moesaic::route_token_choice";

  static void check(const at::Tensor& logits, const TokenChoiceCall& call);
  static auto pack(const TokenChoiceCall& call) {
    const TokenChoiceOptions& options = call.known;
    return std::make_tuple(
        options.k, static_cast<int64_t>(options.gate), options.capacity_factor, call.group_size,
        options.kept, options.batch_priority, options.pruned == PrunedSelection::reroute,
        static_cast<int64_t>(options.capacity_rounding), options.capacity_multiple_of, call.rows);
  }
  static TokenChoiceCall unpack(int64_t k, int64_t gate, double capacity_factor,
                                c10::SymInt group_size, at::IntArrayRef kept, bool batch_priority,
                                bool reroute, int64_t capacity_rounding,
                                int64_t capacity_multiple_of, c10::SymInt capacity) {
    return {{.k = k,
             .gate = static_cast<Gate>(gate),
             .capacity_factor = capacity_factor,
             .kept = kept.vec(),
             .batch_priority = batch_priority,
             .pruned = pruned_selection(reroute),
             .capacity_rounding = static_cast<CapacityRounding>(capacity_rounding),
             .capacity_multiple_of = capacity_multiple_of},
            std::move(group_size),
            std::move(capacity)};
  }
};

/// The gradient takes the options that it depends on; unpack() leaves the others at their defaults.
struct TokenChoiceBackwardPacking {
  static constexpr const char* kName = "moesaic::route_token_choice_backward";

  static void check(const at::Tensor& grad_gate, const at::Tensor& logits, const at::Tensor& choice,
                    const at::Tensor& choice_row, const TokenChoiceOptions& options);
  static auto pack(const TokenChoiceCall& call) {
    return std::make_tuple(static_cast<int64_t>(call.known.gate), call.known.kept,
                           call.known.pruned == PrunedSelection::reroute);
  }
  static TokenChoiceCall unpack(int64_t gate, at::IntArrayRef kept, bool reroute) {
    return TokenChoiceOptions{
        .gate = static_cast<Gate>(gate), .kept = kept.vec(), .pruned = pruned_selection(reroute)};
  }
};

struct ExpertChoicePacking {
  static constexpr const char* kName = "moesaic::route_expert_choice";

  static void check(const at::Tensor& logits, const ExpertChoiceCall& call);
  static auto pack(const ExpertChoiceCall& call) {
    const ExpertChoiceOptions& options = call.known;
    return std::make_tuple(
        call.rows, options.capacity_factor, call.group_size, static_cast<int64_t>(options.gate),
        options.kept, options.pruned == PrunedSelection::reroute,
        static_cast<int64_t>(options.capacity_rounding), options.capacity_multiple_of);
  }
  static ExpertChoiceCall unpack(c10::SymInt rows, double capacity_factor, c10::SymInt group_size,
                                 int64_t gate, at::IntArrayRef kept, bool reroute,
                                 int64_t capacity_rounding, int64_t capacity_multiple_of) {
    return {{.capacity_factor = capacity_factor,
             .gate = static_cast<ExpertGate>(gate),
             .kept = kept.vec(),
             .pruned = pruned_selection(reroute),
             .capacity_rounding = static_cast<CapacityRounding>(capacity_rounding),
             .capacity_multiple_of = capacity_multiple_of},
            std::move(group_size),
            std::move(rows)};
  }
};

/// The gradient takes the same options.
struct ExpertChoiceBackwardPacking : ExpertChoicePacking {
  static constexpr const char* kName = "moesaic::route_expert_choice_backward";

  static void check(const at::Tensor& grad_gate, const at::Tensor& logits, const at::Tensor& token,
                    const at::Tensor& gates, const ExpertChoiceCall& call);
};

struct AdaptivePacking {
  static constexpr const char* kName = "moesaic::route_adaptive";

  static void check(const at::Tensor& logits, const AdaptiveOptions& options);
  static auto pack(const AdaptiveOptions& options) {
    return std::make_tuple(options.threshold, options.kept);
  }
  static AdaptiveOptions unpack(double threshold, at::IntArrayRef kept) {
    return {.threshold = threshold, .kept = kept.vec()};
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
template <class Options, class Int>
Int computed_experts(const Options& options, const Int& experts) {
  return options.kept.empty() ? experts : Int(static_cast<int64_t>(options.kept.size()));
}
/// Returns the number of experts that selection, softmax and capacity see.
template <class Options, class Int>
Int seen_experts(const Options& options, const Int& experts) {
  return options.pruned == PrunedSelection::reroute ? computed_experts(options, experts) : experts;
}

}  // namespace moesaic::ops
