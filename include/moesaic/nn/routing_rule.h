// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <variant>
#include <vector>

#include "moesaic/ops/route_adaptive.h"
#include "moesaic/ops/route_expert_choice.h"
#include "moesaic/ops/route_token_choice.h"

namespace moesaic::nn {

/// The routing rule: token choice, expert choice, or adaptive routing by a threshold.
using RoutingRule = std::variant<TokenChoiceOptions, ExpertChoiceOptions, AdaptiveOptions>;

Routing route(const at::Tensor& logits_TE, const RoutingRule& rule);

/// Returns the ids of the experts that are computed; empty means all.
const std::vector<int64_t>& kept_experts(const RoutingRule& rule);
void set_kept_experts(RoutingRule& rule, std::vector<int64_t> experts);

/// Returns the rule with this capacity in place of its own; adaptive routing has none.
RoutingRule with_capacity_factor(RoutingRule rule, double factor);

/// Returns the number k of experts that each token selects, 0 where the rule is not token choice.
int64_t choices_of_token(const RoutingRule& rule);
/// Returns how many tokens are routed together; 0 means all of a call, or each independently.
int64_t group_size(const RoutingRule& rule);
/// Returns what pruning does to the selection; for adaptive routing both ways agree.
PrunedSelection pruned_selection(const RoutingRule& rule);
/// Returns whether a token's routing depends on the other tokens of the call.
bool couples_tokens(const RoutingRule& rule);

/// Returns the rows that the router assigns per token for images of `tokens` tokens, without pruned
/// experts and dropped choices; for adaptive routing the maximum. A token that is alone in its
/// image is routed with those of other images: in full groups or, without groups, in the limit of
/// a large batch. Throws Error for a capacity below one row.
double rows_per_token(const RoutingRule& rule, int64_t tokens, int64_t experts);

}  // namespace moesaic::nn
