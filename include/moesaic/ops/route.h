// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "moesaic/ops/route_options.h"
#include "moesaic/ops/routing.h"

namespace moesaic {

/// Routes tokens to experts by the rule of `options`.
///
/// logits_TE: [T, E] of any floating type; bfloat16 and float16 are converted to float32, in which
/// the gates are. The routing is deterministic, and gradients flow through the gates. Computed
/// experts are numbered by their index in `kept`; the rows of an expert are in token order.
///
/// Token choice: top-k (pruning paper, eqs. 1-3 and, with `kept`, eq. 5); k = 1 is the switch
/// routing of the clusters paper (its noise: router_noise()). Choices are by logit; ties go to the
/// lower expert. With a capacity, all first choices of a group queue before its second choices;
/// each rank queues in token order or, with `batch_priority`, by the gate of the token's first
/// choice, equal gates in token order. Choices that find their expert full are dropped.
///
/// Expert choice: each expert selects the `l` best tokens of every group, or min(S,
/// expert_capacity(S, 1, ...)) of its S tokens (pruning paper, eqs. 2 and 4; pMoE, model (1);
/// V-MoE's top items per expert). A dense network is the special case of one expert that selects
/// all tokens of a group. Tokens are ranked by logit or, with softmax_all, by gate; ties go to the
/// earlier token. A token's rows are in the order of experts. Experts select independently, so
/// pruning does not change the others' rows (pruning paper, below eq. 6). All offsets follow from
/// the sizes. `choice` is [T, 0].
///
/// Threshold: adaptive top-k (latent paper, sections 3.1 and 3.3). A token goes to every expert
/// whose logit is at least `threshold`, possibly to none, with gate 1. Nothing is differentiable. A
/// token's rows are in the order of experts; `choice` is [T, 0].
///
/// Throws Error for wrong shapes, a bad `kept`, k > E (or k > kept with `reroute`), more rows than
/// a group has tokens, both or, in expert choice, neither of rows and factor, a gate of another
/// rule, logits of NaN or, without a threshold, +infinity, and a token or softmax without a finite
/// logit. A GPU cannot report logits without a synchronisation: there, NaN counts as -infinity, and
/// the gates that such logits decide are NaN.
Routing route(const at::Tensor& logits_TE, const RouteOptions& options);

}  // namespace moesaic
