// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "moesaic/ops/route_options.h"
#include "moesaic/ops/routing.h"

namespace moesaic {

/// Options of expert-choice routing; exactly one of `rows` and `capacity_factor` is given.
/// route_token_choice.h describes how to add an option.
struct ExpertChoiceOptions {
  int64_t rows = 0;              ///< Number l of tokens that an expert selects in each group.
  double capacity_factor = 0.0;  ///< Instead of `rows`: an expert selects min(S,
                                 ///< expert_capacity(S, 1, ..., experts)) of a group's S tokens.
  int64_t group_size = 0;        ///< Tokens of an image, or of V-MoE's group; 0: all of the call.
  ExpertGate gate = ExpertGate::softmax_selected;  ///< Gate that weighs the outputs.
  std::vector<int64_t> kept = {};  ///< Ids of the computed experts, ascending; empty: all.
  PrunedSelection pruned = PrunedSelection::zero;  ///< Whether experts that are not kept count, in
                                                   ///< softmax_experts and in the number of experts
                                                   ///< that a capacity divides by.
  CapacityRounding capacity_rounding = CapacityRounding::ceil;  ///< Rounding of a capacity.
  int64_t capacity_multiple_of = 4;  ///< A capacity is raised to a multiple of this.

  /// Returns the rule of an expert's capacity where `rows` are not given.
  CapacityRule capacity_rule() const {
    return {capacity_factor, capacity_rounding, capacity_multiple_of};
  }
};

/// Routes by expert choice: each expert selects the `rows` best tokens of every group
/// (pruning paper, eqs. 2 and 4; pMoE, model (1); V-MoE's top items per expert). A dense network is
/// the special case of one expert that selects all tokens of a group.
///
/// logits_TE: [T, E] of any floating type; bfloat16 and float16 are converted to float32, in
/// which the gates are. Tokens are ranked by logit or, with softmax_experts, by
/// gate; ties go to the earlier token. Rows of an expert are in token order, a token's rows in the
/// order of experts. Experts select independently, so pruning does not change the others' rows
/// (pruning paper, below eq. 6); experts are numbered by their index in `kept`. All offsets follow
/// from the sizes. `choice` is [T, 0]. The routing is deterministic; gradients flow through the
/// gates. Throws Error for wrong shapes, more rows than a group has tokens, logits that are NaN or
/// +infinity, or a softmax without a finite logit; on a GPU, which cannot report such logits
/// without a synchronisation, an expert's gates in such a group are NaN.
Routing route_expert_choice(const at::Tensor& logits_TE, const ExpertChoiceOptions& options);

}  // namespace moesaic
