// SPDX-License-Identifier: Apache-2.0
// To add an option to a routing, edit four places, here as for expert choice and adaptive routing:
// the options struct below, with its meaning; the schema (src/ops/route_operators.cpp), where
// Python sees it, at the end and with the same default; pack() and unpack()
// (src/ops/route_arguments.h); and the composite (src/ops/route.cpp), which a kernel without the
// option leaves such calls to.
#pragma once

#include "moesaic/ops/route_options.h"
#include "moesaic/ops/routing.h"

namespace moesaic {

/// Options of token-choice routing.
struct TokenChoiceOptions {
  int64_t k = 2;                   ///< Number of experts that a token selects.
  Gate gate = Gate::softmax_all;   ///< Gate that weighs their outputs.
  double capacity_factor = 0.0;    ///< The factor of expert_capacity(); 0: nothing is dropped.
  int64_t group_size = 0;          ///< Tokens among which a capacity counts; the last group may be
                                   ///< smaller. 0: all tokens of the call.
  std::vector<int64_t> kept = {};  ///< Ids of the computed experts, ascending; empty: all.
  bool batch_priority = false;     ///< Tokens queue by falling first gate instead of by position.
  PrunedSelection pruned = PrunedSelection::zero;               ///< Treatment of pruned experts.
  CapacityRounding capacity_rounding = CapacityRounding::ceil;  ///< Rounding of a capacity.
  int64_t capacity_multiple_of = 4;  ///< A capacity is raised to a multiple of this.
  int64_t capacity = 0;              ///< Capacity in rows, instead of a factor; 0: by the factor.

  /// Returns the rule of an expert's capacity.
  CapacityRule capacity_rule() const {
    return {capacity_factor, capacity_rounding, capacity_multiple_of, capacity};
  }
};

/// Routes by token-choice top-k (pruning paper, eqs. 1-3 and, with `kept`, eq. 5); k = 1 is the
/// switch routing of the clusters paper (its noise: router_noise.h).
///
/// logits_TE: [T, E] of any floating type; bfloat16 and float16 are converted to float32, in
/// which the gates are. Choices are by logit; ties go to the lower expert. With a
/// capacity, all first choices of a group queue before its second choices; each rank queues in
/// token order or, with `batch_priority`, by the gate of the token's first choice, equal gates in
/// token order. Choices that find their expert full are dropped. The routing is deterministic;
/// gradients flow through the gates. Throws Error for wrong shapes, k > E (or k > kept with
/// `reroute`), logits of NaN or +infinity, a token without a finite logit, a bad `kept`, or both
/// capacity and factor. A GPU cannot report logits without a synchronisation: there, NaN counts as
/// -infinity and a token whose logits would be refused gets gates of NaN.
Routing route_token_choice(const at::Tensor& logits_TE, const TokenChoiceOptions& options);

}  // namespace moesaic
