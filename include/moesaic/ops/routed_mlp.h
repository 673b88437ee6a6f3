// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "moesaic/ops/grouped_mlp.h"
#include "moesaic/ops/routing.h"

namespace moesaic {

/// Computes all that follows the routing of a layer: combine(grouped_mlp(dispatch(x))). Where a
/// gradient is wanted it is those three operators. Where none is, it is one pass that holds at most
/// 16 MB beside its input and output on up to 32 threads, however many tokens there are, and gives
/// the same bits in float32 and float64. In bfloat16 it may differ by roundings of the experts'
/// outputs, and a processor without products of bfloat16 widens the weights for the call.
///
/// x_Td: [T, d] of the weights' dtype. Returns [T, d]. Throws Error where the routing's two halves
/// (rows of experts, rows of tokens) differ in how many rows a stretch of tokens has.
at::Tensor routed_mlp(const at::Tensor& x_Td, const Routing& routing, const ExpertWeights& weights,
                      Activation activation);

}  // namespace moesaic
