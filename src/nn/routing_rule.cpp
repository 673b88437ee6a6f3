// SPDX-License-Identifier: Apache-2.0
#include "moesaic/nn/routing_rule.h"

#include <algorithm>

namespace moesaic::nn {
namespace {

double expert_choice_rows_per_token(const ExpertChoiceOptions& rule, int64_t tokens,
                                    int64_t experts) {
  const bool alone = tokens == 1;
  if (alone && rule.group_size == 0 && rule.rows == 0) {
    return std::min(rule.capacity_factor, static_cast<double>(experts));
  }
  int64_t group = rule.group_size > 0 ? rule.group_size : tokens;
  if (!alone) group = std::min(group, tokens);
  const CapacityRule capacity{rule.capacity_factor, rule.capacity_rounding,
                              rule.capacity_multiple_of};
  const int64_t rows =
      rule.rows > 0 ? rule.rows : std::min(group, expert_capacity(group, 1, capacity, experts));
  return static_cast<double>(rows * experts) / static_cast<double>(group);
}

/// Visitor that calls the overload for the alternative of the variant.
template <class... Cases>
struct Match : Cases... {
  using Cases::operator()...;
};
template <class... Cases>
Match(Cases...) -> Match<Cases...>;

}  // namespace

Routing route(const at::Tensor& logits_TE, const RoutingRule& rule) {
  return std::visit(
      Match{[&](const TokenChoiceOptions& r) { return route_token_choice(logits_TE, r); },
            [&](const ExpertChoiceOptions& r) { return route_expert_choice(logits_TE, r); },
            [&](const AdaptiveOptions& r) { return route_adaptive(logits_TE, r); }},
      rule);
}

const std::vector<int64_t>& kept_experts(const RoutingRule& rule) {
  return std::visit(
      [](const auto& options) -> const auto& { return options.kept; }, rule);
}

void set_kept_experts(RoutingRule& rule, std::vector<int64_t> experts) {
  std::visit([&](auto& options) { options.kept = std::move(experts); }, rule);
}

RoutingRule with_capacity_factor(RoutingRule rule, double factor) {
  if (auto* tokens = std::get_if<TokenChoiceOptions>(&rule)) {
    tokens->capacity_factor = factor;
    tokens->capacity = 0;
  } else if (auto* experts = std::get_if<ExpertChoiceOptions>(&rule)) {
    experts->capacity_factor = factor;
    experts->rows = 0;
  }
  return rule;
}

int64_t choices_of_token(const RoutingRule& rule) {
  const auto* options = std::get_if<TokenChoiceOptions>(&rule);
  return options == nullptr ? 0 : options->k;
}

int64_t group_size(const RoutingRule& rule) {
  return std::visit(Match{[](const AdaptiveOptions&) { return int64_t{0}; },
                          [](const auto& options) { return options.group_size; }},
                    rule);
}

PrunedSelection pruned_selection(const RoutingRule& rule) {
  return std::visit(Match{[](const AdaptiveOptions&) { return PrunedSelection::zero; },
                          [](const auto& options) { return options.pruned; }},
                    rule);
}

bool couples_tokens(const RoutingRule& rule) {
  return std::visit(Match{[](const TokenChoiceOptions& options) {
                            return options.capacity_factor > 0.0 || options.capacity > 0;
                          },
                          [](const ExpertChoiceOptions&) { return true; },
                          [](const AdaptiveOptions&) { return false; }},
                    rule);
}

double rows_per_token(const RoutingRule& rule, int64_t tokens, int64_t experts) {
  return std::visit(
      Match{[](const TokenChoiceOptions& options) { return static_cast<double>(options.k); },
            [&](const ExpertChoiceOptions& options) {
              return expert_choice_rows_per_token(options, tokens, experts);
            },
            [&](const AdaptiveOptions&) { return static_cast<double>(experts); }},
      rule);
}

}  // namespace moesaic::nn
