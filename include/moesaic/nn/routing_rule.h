// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <variant>
#include <vector>

#include "moesaic/ops/route_expert_choice.h"
#include "moesaic/ops/route_token_choice.h"

namespace moesaic::nn {

/// Who chooses: tokens their experts, or experts their tokens.
using RoutingRule = std::variant<TokenChoiceOptions, ExpertChoiceOptions>;

Routing route(const at::Tensor& logits_TE, const RoutingRule& rule);

/// Experts that are computed; empty: all.
const std::vector<int64_t>& kept_experts(const RoutingRule& rule);
void set_kept_experts(RoutingRule& rule, std::vector<int64_t> experts);

/// Experts that a token selects at least: k, or 0 where experts choose.
int64_t choices_of_token(const RoutingRule& rule);
int64_t group_size(const RoutingRule& rule);
PrunedSelection pruned_selection(const RoutingRule& rule);
/// Does a token's routing depend on the tokens beside it?
bool couples_tokens(const RoutingRule& rule);

/// Rows that the router gives out for each of so many tokens, were no expert pruned and no choice
/// dropped. Throws Error for a capacity below one row.
double rows_per_token(const RoutingRule& rule, int64_t tokens, int64_t experts);

}  // namespace moesaic::nn
