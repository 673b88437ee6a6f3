// SPDX-License-Identifier: Apache-2.0
#include "moesaic/models/router_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "moesaic/base/error.h"

namespace moesaic {
namespace {

/// Sets the options that rules with a capacity have in common.
template <class Options>
Options with_capacity(Options rule, const RoutingConfig& routing,
                      const DispatcherConfig& dispatcher, int64_t group_size) {
  rule.capacity_factor = dispatcher.capacity_factor;
  rule.capacity_rounding = capacity_rounding_from_name(dispatcher.capacity_rounding);
  rule.capacity_multiple_of = dispatcher.capacity_multiple_of;
  rule.group_size = group_size;
  rule.pruned = pruned_selection_from_name(routing.pruned_selection);
  return rule;
}

ConfigProblem adaptive_problem(const RoutingConfig& routing, const DispatcherConfig& dispatcher,
                               const RouterContext& place) {
  const std::string& path = place.router;
  if (dispatcher.has_capacity() || dispatcher.evaluation_capacity_factor ||
      dispatcher.batch_priority) {
    return {fmt::format("{0}dispatcher limits the rows per expert, but the router {1} drops no "
                        "token; leave capacity and batch_priority out",
                        path, kAdaptive),
            {path + "dispatcher.capacity", path + "dispatcher.capacity_factor",
             path + "dispatcher.evaluation_capacity_factor", path + "dispatcher.batch_priority",
             path + "name"}};
  }
  if (routing.gate != "one") {
    return {fmt::format("{}gate is '{}', but the router {} has no gates; set it to 'one'", path,
                        routing.gate, kAdaptive),
            {path + "gate", path + "name"}};
  }
  return {};
}

ConfigProblem expert_choice_problem(const RoutingConfig& routing,
                                    const DispatcherConfig& dispatcher,
                                    const RouterContext& place) {
  const std::string& path = place.router;
  const bool limited = dispatcher.has_capacity();
  if (routing.gate == "logit") {
    return {
        fmt::format("{}gate 'logit' is for the router {}; choose softmax_all", path, kTokenChoice),
        {path + "gate"}};
  }
  if (dispatcher.evaluation_capacity_factor == 0.0) {
    return {fmt::format("{}dispatcher.evaluation_capacity_factor is 0, but expert choice needs a "
                        "capacity; give a factor above 0, or null for that of training",
                        path),
            {path + "dispatcher.evaluation_capacity_factor"}};
  }
  if (limited == (routing.num_selected_tokens > 0)) {
    return {
        fmt::format("{0} needs either {1}dispatcher.capacity_factor, or {1}num_selected_tokens "
                    "with {2}; {3} given",
                    kExpertChoice, path, place.group_size_key, limited ? "both are" : "neither is"),
        {path + "num_selected_tokens", path + "name"}};
  }
  if (routing.num_selected_tokens > 0 && place.group_size == 0) {
    return {fmt::format("{}num_selected_tokens counts tokens of a group: set {}, for instance to "
                        "the tokens of an image",
                        path, place.group_size_key),
            {path + "num_selected_tokens"}};
  }
  return {};
}

ConfigProblem dispatcher_problem(const RoutingConfig& routing, const DispatcherConfig& dispatcher,
                                 const RouterContext& place) {
  const std::string path = place.router + "dispatcher.";
  if (dispatcher.capacity > 0 && dispatcher.capacity_factor > 0.0) {
    return {fmt::format("{0}capacity and {0}capacity_factor are both given; leave one out", path),
            {path + "capacity", path + "capacity_factor"}};
  }
  const bool limits =
      dispatcher.has_capacity() || dispatcher.evaluation_capacity_factor.value_or(0) > 0;
  if (dispatcher.batch_priority && (routing.is_expert_choice() || !limits)) {
    return {fmt::format("{}batch_priority decides which tokens are dropped, but {}", path,
                        routing.is_expert_choice()
                            ? fmt::format("experts choose; leave it out or choose {}", kTokenChoice)
                            : "none is without " + path + "capacity_factor; set that"),
            {path + "batch_priority", path + "capacity_factor"}};
  }
  return {};
}

/// Rejects settings that only another routing rule has.
ConfigProblem foreign_problem(const RoutingConfig& routing, const RouterContext& place) {
  const std::string& path = place.router;
  if (routing.threshold != 0.0 && routing.name != kAdaptive) {
    return {fmt::format("{}threshold is for the router {}; leave it out", path, kAdaptive),
            {path + "threshold"}};
  }
  if (routing.is_expert_choice()) return {};
  if (routing.num_selected_tokens > 0) {
    return {fmt::format("{}num_selected_tokens is for the router {}; leave it out", path,
                        kExpertChoice),
            {path + "num_selected_tokens"}};
  }
  if (routing.gate == "softmax_tokens") {
    return {fmt::format("{}gate 'softmax_tokens' is for the router {}; choose softmax_all", path,
                        kExpertChoice),
            {path + "gate"}};
  }
  return {};
}

}  // namespace

std::string full_router_name(const std::string& name) {
  if (name == "token_choice") return kTokenChoice;
  if (name == "expert_choice") return kExpertChoice;
  return name == "threshold" ? kAdaptive : name;
}

nn::RoutingRule routing_rule(const RoutingConfig& routing, const DispatcherConfig& dispatcher,
                             int64_t group_size) {
  if (routing.name == kAdaptive) return AdaptiveOptions{.threshold = routing.threshold};
  if (routing.is_expert_choice()) {
    ExpertChoiceOptions rule;
    rule.gate = routing.gate == "softmax_all" ? ExpertGate::softmax_experts
                                              : expert_gate_from_name(routing.gate);
    rule.rows = routing.num_selected_tokens > 0 ? routing.num_selected_tokens : dispatcher.capacity;
    return with_capacity(rule, routing, dispatcher, group_size);
  }
  TokenChoiceOptions rule;
  rule.k = routing.num_selected_experts;
  rule.gate = gate_from_name(routing.gate);
  rule.batch_priority = dispatcher.batch_priority;
  rule.capacity = dispatcher.capacity;
  return with_capacity(rule, routing, dispatcher, group_size);
}

ConfigProblem routing_problem(const RoutingConfig& routing, const DispatcherConfig& dispatcher,
                              const RouterContext& place) {
  if (routing.is_token_choice() && routing.num_selected_experts > place.num_experts) {
    return {
        fmt::format("{0}num_selected_experts is {1}, but there are {2} experts; choose at most {2}",
                    place.router, routing.num_selected_experts, place.num_experts),
        {place.router + "num_selected_experts", place.experts_key}};
  }
  if (ConfigProblem problem = foreign_problem(routing, place); !problem.empty()) return problem;
  if (routing.name == kAdaptive) return adaptive_problem(routing, dispatcher, place);
  ConfigProblem problem = dispatcher_problem(routing, dispatcher, place);
  if (!problem.empty() || routing.is_token_choice()) return problem;
  return expert_choice_problem(routing, dispatcher, place);
}

ConfigProblem capacity_problem(const RoutingConfig& routing, const DispatcherConfig& dispatcher,
                               const RouterContext& place) {
  const bool is_rerouted = routing.pruned_selection != "zero" && place.is_pruned;
  if (place.group_size == 0 || is_rerouted) return {};
  const int64_t choices = routing.is_expert_choice() ? 1 : routing.num_selected_experts;
  const std::pair<const char*, double> factors[] = {
      {"capacity_factor", dispatcher.capacity_factor},
      {"evaluation_capacity_factor", dispatcher.evaluation_capacity_factor.value_or(0.0)}};
  for (const auto& [name, factor] : factors) {
    const CapacityRule rule{factor, capacity_rounding_from_name(dispatcher.capacity_rounding),
                            dispatcher.capacity_multiple_of};
    const std::string key = fmt::format("{}dispatcher.{}", place.router, name);
    try {
      if (factor > 0.0) expert_capacity(place.group_size, choices, rule, place.num_experts);
    } catch (const Error& error) {
      return {fmt::format("{} {} is too small: {}", key, factor, error.what()),
              {key, place.group_size_key}};
    }
  }
  return {};
}

ConfigProblem kept_problem(const std::vector<int64_t>& kept, int64_t experts,
                           const std::string& what, const std::string& key) {
  const bool ascending = std::is_sorted(kept.begin(), kept.end(), std::less_equal<>());
  if (!kept.empty() && ascending && kept.front() >= 0 && kept.back() < experts) return {};
  return {fmt::format("{} must be ascending experts below {}, at least one", what, experts), {key}};
}

ConfigProblem kept_setting_problem(const std::vector<int64_t>& kept, int64_t experts,
                                   const std::string& key) {
  return kept.empty() ? ConfigProblem() : kept_problem(kept, experts, key, key);
}

ConfigProblem mean_replacement_problem(bool mean_replacement, const RoutingConfig& routing,
                                       const std::string& router, const std::string& key) {
  if (!mean_replacement || routing.pruned_selection == "zero") return {};
  return {fmt::format("{} needs {}pruned_selection to be 'zero', found '{}'", key, router,
                      routing.pruned_selection),
          {key, router + "pruned_selection"}};
}

}  // namespace moesaic
