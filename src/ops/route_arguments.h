// SPDX-License-Identifier: Apache-2.0
// Conversion of the options of every routing operator to arguments of the dispatcher and back, the
// only list of them beside the schema. Schemas take numbers for enumerators and `reroute` for
// PrunedSelection.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

#include <tuple>
#include <vector>

#include "moesaic/ops/route_adaptive.h"
#include "moesaic/ops/route_expert_choice.h"
#include "moesaic/ops/route_token_choice.h"
#include "options_operator.h"

namespace moesaic::ops {

inline PrunedSelection pruned_selection(bool reroute) {
  return reroute ? PrunedSelection::reroute : PrunedSelection::zero;
}

struct TokenChoicePacking {
  static constexpr const char* kName = "moesaic::route_token_choice";

  static auto pack(const TokenChoiceOptions& options) {
    return std::make_tuple(options.k, static_cast<int64_t>(options.gate), options.capacity_factor,
                           options.group_size, options.kept, options.batch_priority,
                           options.pruned == PrunedSelection::reroute,
                           static_cast<int64_t>(options.capacity_rounding),
                           options.capacity_multiple_of, options.capacity);
  }
  static TokenChoiceOptions unpack(int64_t k, int64_t gate, double capacity_factor,
                                   int64_t group_size, at::IntArrayRef kept, bool batch_priority,
                                   bool reroute, int64_t capacity_rounding,
                                   int64_t capacity_multiple_of, int64_t capacity) {
    return {.k = k,
            .gate = static_cast<Gate>(gate),
            .capacity_factor = capacity_factor,
            .group_size = group_size,
            .kept = kept.vec(),
            .batch_priority = batch_priority,
            .pruned = pruned_selection(reroute),
            .capacity_rounding = static_cast<CapacityRounding>(capacity_rounding),
            .capacity_multiple_of = capacity_multiple_of,
            .capacity = capacity};
  }
};

/// The gradient takes the options that it depends on; unpack() leaves the others at their defaults.
struct TokenChoiceBackwardPacking {
  static constexpr const char* kName = "moesaic::route_token_choice_backward";

  static auto pack(const TokenChoiceOptions& options) {
    return std::make_tuple(static_cast<int64_t>(options.gate), options.kept,
                           options.pruned == PrunedSelection::reroute);
  }
  static TokenChoiceOptions unpack(int64_t gate, at::IntArrayRef kept, bool reroute) {
    return {
        .gate = static_cast<Gate>(gate), .kept = kept.vec(), .pruned = pruned_selection(reroute)};
  }
};

struct ExpertChoicePacking {
  static constexpr const char* kName = "moesaic::route_expert_choice";

  static auto pack(const ExpertChoiceOptions& options) {
    return std::make_tuple(options.rows, options.capacity_factor, options.group_size,
                           static_cast<int64_t>(options.gate), options.kept,
                           options.pruned == PrunedSelection::reroute,
                           static_cast<int64_t>(options.capacity_rounding),
                           options.capacity_multiple_of);
  }
  static ExpertChoiceOptions unpack(int64_t rows, double capacity_factor, int64_t group_size,
                                    int64_t gate, at::IntArrayRef kept, bool reroute,
                                    int64_t capacity_rounding, int64_t capacity_multiple_of) {
    return {.rows = rows,
            .capacity_factor = capacity_factor,
            .group_size = group_size,
            .gate = static_cast<ExpertGate>(gate),
            .kept = kept.vec(),
            .pruned = pruned_selection(reroute),
            .capacity_rounding = static_cast<CapacityRounding>(capacity_rounding),
            .capacity_multiple_of = capacity_multiple_of};
  }
};

/// The gradient takes the same options.
struct ExpertChoiceBackwardPacking : ExpertChoicePacking {
  static constexpr const char* kName = "moesaic::route_expert_choice_backward";
};

struct AdaptivePacking {
  static constexpr const char* kName = "moesaic::route_adaptive";

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

inline CapacityRule capacity_of(const TokenChoiceOptions& options) {
  return {options.capacity_factor, options.capacity_rounding, options.capacity_multiple_of,
          options.capacity};
}
inline CapacityRule capacity_of(const ExpertChoiceOptions& options) {
  return {options.capacity_factor, options.capacity_rounding, options.capacity_multiple_of};
}

/// Returns the number of experts that are computed.
template <class Options>
int64_t computed_experts(const Options& options, int64_t experts) {
  return options.kept.empty() ? experts : static_cast<int64_t>(options.kept.size());
}
/// Returns the number of experts that selection, softmax and capacity see.
template <class Options>
int64_t seen_experts(const Options& options, int64_t experts) {
  return options.pruned == PrunedSelection::reroute ? computed_experts(options, experts) : experts;
}

}  // namespace moesaic::ops
