// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "moesaic/ops/grouped_mlp.h"
#include "moesaic/ops/routing.h"

namespace moesaic {

/// All that follows the routing of a layer: combine(grouped_mlp(dispatch(x))), bit by bit. Where no
/// gradient is wanted it is one pass that holds a few MB beside its input and output, however many
/// tokens there are; where one is, it is those three operators.
///
/// x_Td: [T, d] of the weights' dtype. Returns [T, d]. Throws Error where the routing's two halves
/// (rows of experts, rows of tokens) do not fit each other.
at::Tensor routed_mlp(const at::Tensor& x_Td, const Routing& routing, const ExpertWeights& weights,
                      Activation activation);

}  // namespace moesaic
