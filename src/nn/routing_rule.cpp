// SPDX-License-Identifier: Apache-2.0
#include "moesaic/nn/routing_rule.h"

#include <algorithm>

namespace moesaic::nn {
namespace {

double expert_choice_rows_per_token(const ExpertChoiceOptions& rule, int64_t tokens,
                                    int64_t experts) {
  const int64_t group = rule.group_size > 0 ? std::min(rule.group_size, tokens) : tokens;
  const CapacityRule capacity{rule.capacity_factor, rule.capacity_rounding,
                              rule.capacity_multiple_of};
  const int64_t rows =
      rule.rows > 0 ? rule.rows : std::min(group, expert_capacity(group, 1, capacity, experts));
  return static_cast<double>(rows * experts) / static_cast<double>(group);
}

}  // namespace

Routing route(const at::Tensor& logits_TE, const RoutingRule& rule) {
  if (const auto* options = std::get_if<TokenChoiceOptions>(&rule)) {
    return route_token_choice(logits_TE, *options);
  }
  return route_expert_choice(logits_TE, std::get<ExpertChoiceOptions>(rule));
}

const std::vector<int64_t>& kept_experts(const RoutingRule& rule) {
  return std::visit(
      [](const auto& options) -> const auto& { return options.kept; }, rule);
}

void set_kept_experts(RoutingRule& rule, std::vector<int64_t> experts) {
  std::visit([&](auto& options) { options.kept = std::move(experts); }, rule);
}

int64_t choices_of_token(const RoutingRule& rule) {
  const auto* options = std::get_if<TokenChoiceOptions>(&rule);
  return options == nullptr ? 0 : options->k;
}

int64_t group_size(const RoutingRule& rule) {
  return std::visit([](const auto& options) { return options.group_size; }, rule);
}

PrunedSelection pruned_selection(const RoutingRule& rule) {
  return std::visit([](const auto& options) { return options.pruned; }, rule);
}

bool couples_tokens(const RoutingRule& rule) {
  const auto* options = std::get_if<TokenChoiceOptions>(&rule);
  return options == nullptr || options->capacity_factor > 0.0 || options->capacity > 0;
}

double rows_per_token(const RoutingRule& rule, int64_t tokens, int64_t experts) {
  if (const auto* options = std::get_if<TokenChoiceOptions>(&rule)) {
    return static_cast<double>(options->k);
  }
  return expert_choice_rows_per_token(std::get<ExpertChoiceOptions>(rule), tokens, experts);
}

}  // namespace moesaic::nn
