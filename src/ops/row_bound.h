// SPDX-License-Identifier: Apache-2.0
// Tensors of a routing, and bounds of its rows for the shape functions: what route_plan.h computes
// for the kernels, in operations that the symbols of a compiler have too.
#pragma once

#include "route_arguments.h"

namespace moesaic::ops {

/// Returns tensors of a routing of logits to `computed` experts, not yet filled.
RowTensors unfilled_rows(const at::Tensor& logits_TE, const c10::SymInt& computed,
                         const c10::SymInt& bound);

/// Returns the upper bound A of the rows of a token-choice routing.
c10::SymInt token_choice_row_bound(const c10::SymInt& tokens, const c10::SymInt& experts,
                                   const TokenChoiceCall& call);
/// Returns how many tokens an expert selects in all groups together.
c10::SymInt expert_choice_rows(const c10::SymInt& tokens, const c10::SymInt& experts,
                               const ExpertChoiceCall& call);

}  // namespace moesaic::ops
