// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <variant>
#include <vector>

#include "moesaic/ops/route_adaptive.h"
#include "moesaic/ops/route_expert_choice.h"
#include "moesaic/ops/route_token_choice.h"

namespace moesaic::nn {

/// Options of adaptive routing, see route_adaptive(): a token goes to every expert whose logit
/// reaches the threshold.
struct AdaptiveOptions {
  double threshold = 0.0;
  std::vector<int64_t> kept = {};  ///< experts that are computed, ascending; empty: all
};

/// Who chooses: tokens their experts, experts their tokens, or a threshold.
using RoutingRule = std::variant<TokenChoiceOptions, ExpertChoiceOptions, AdaptiveOptions>;

Routing route(const at::Tensor& logits_TE, const RoutingRule& rule);

/// Experts that are computed; empty: all.
const std::vector<int64_t>& kept_experts(const RoutingRule& rule);
void set_kept_experts(RoutingRule& rule, std::vector<int64_t> experts);

/// Experts that each token selects: k, or 0 where it is not the token that counts.
int64_t choices_of_token(const RoutingRule& rule);
/// Tokens that are routed together; 0: all of a call, or each by itself where that is the same.
int64_t group_size(const RoutingRule& rule);
/// Adaptive routing judges each expert by itself, so that both ways are one.
PrunedSelection pruned_selection(const RoutingRule& rule);
/// Does a token's routing depend on the tokens beside it?
bool couples_tokens(const RoutingRule& rule);

/// Rows that the router gives out for each of so many tokens of an image, were no expert pruned and
/// no choice dropped; adaptive routing gives out at most these. A token alone in its image is
/// routed with those of other images: in full groups or, without groups, among very many. Throws
/// Error for a capacity below one row.
double rows_per_token(const RoutingRule& rule, int64_t tokens, int64_t experts);

}  // namespace moesaic::nn
