// SPDX-License-Identifier: Apache-2.0
#include "moesaic/models/router_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "moesaic/base/error.h"

namespace moesaic {
namespace {

ConfigProblem adaptive_problem(const RouteOptions& routing, const RouterContext& place) {
  const std::string& path = place.router;
  if (routing.capacity.has_capacity() || routing.capacity.evaluation_factor ||
      routing.capacity.batch_priority) {
    return {fmt::format("{0}dispatcher limits the rows per expert, but the router {1} drops no "
                        "token; leave capacity and batch_priority out",
                        path, kAdaptive),
            {path + "dispatcher.capacity", path + "dispatcher.capacity_factor",
             path + "dispatcher.evaluation_capacity_factor", path + "dispatcher.batch_priority",
             path + "name"}};
  }
  if (routing.gate != Gate::one) {
    return {fmt::format("{}gate is '{}', but the router {} has no gates; set it to 'one'", path,
                        gate_names().at(static_cast<size_t>(routing.gate)), kAdaptive),
            {path + "gate", path + "name"}};
  }
  return {};
}

ConfigProblem expert_choice_problem(const RouteOptions& routing, const RouterContext& place) {
  const std::string& path = place.router;
  const bool limited = routing.capacity.has_capacity();
  if (routing.gate == Gate::logit) {
    return {
        fmt::format("{}gate 'logit' is for the router {}; choose softmax_all", path, kTokenChoice),
        {path + "gate"}};
  }
  if (routing.capacity.evaluation_factor == 0.0) {
    return {fmt::format("{}dispatcher.evaluation_capacity_factor is 0, but expert choice needs a "
                        "capacity; give a factor above 0, or null for that of training",
                        path),
            {path + "dispatcher.evaluation_capacity_factor"}};
  }
  if (limited == (routing.l > 0)) {
    return {
        fmt::format("{0} needs either {1}dispatcher.capacity_factor, or {1}num_selected_tokens "
                    "with {2}; {3} given",
                    kExpertChoice, path, place.group_size_key, limited ? "both are" : "neither is"),
        {path + "num_selected_tokens", path + "name"}};
  }
  if (routing.l > 0 && place.group_size == 0) {
    return {fmt::format("{}num_selected_tokens counts tokens of a group: set {}, for instance to "
                        "the tokens of an image",
                        path, place.group_size_key),
            {path + "num_selected_tokens"}};
  }
  return {};
}

ConfigProblem dispatcher_problem(const RouteOptions& routing, const RouterContext& place) {
  const std::string path = place.router + "dispatcher.";
  if (routing.capacity.rows > 0 && routing.capacity.factor > 0.0) {
    return {fmt::format("{0}capacity and {0}capacity_factor are both given; leave one out", path),
            {path + "capacity", path + "capacity_factor"}};
  }
  const bool limits =
      routing.capacity.has_capacity() || routing.capacity.evaluation_factor.value_or(0) > 0;
  if (routing.capacity.batch_priority && (routing.is_expert_choice() || !limits)) {
    return {fmt::format("{}batch_priority decides which tokens are dropped, but {}", path,
                        routing.is_expert_choice()
                            ? fmt::format("experts choose; leave it out or choose {}", kTokenChoice)
                            : "none is without " + path + "capacity_factor; set that"),
            {path + "batch_priority", path + "capacity_factor"}};
  }
  return {};
}

/// Rejects settings that only another routing rule has.
ConfigProblem foreign_problem(const RouteOptions& routing, const RouterContext& place) {
  const std::string& path = place.router;
  if (routing.threshold != 0.0 && routing.kind != RoutingKind::threshold) {
    return {fmt::format("{}threshold is for the router {}; leave it out", path, kAdaptive),
            {path + "threshold"}};
  }
  if (routing.is_expert_choice()) return {};
  if (routing.l > 0) {
    return {fmt::format("{}num_selected_tokens is for the router {}; leave it out", path,
                        kExpertChoice),
            {path + "num_selected_tokens"}};
  }
  if (routing.is_token_choice() && routing.gate == Gate::softmax_tokens) {
    return {fmt::format("{}gate 'softmax_tokens' is for the router {}; choose softmax_all", path,
                        kExpertChoice),
            {path + "gate"}};
  }
  return {};
}

}  // namespace

RoutingKind routing_kind_from_name(const std::string& name) {
  if (name == kExpertChoice || name == "expert_choice") return RoutingKind::expert_choice;
  if (name == kAdaptive || name == "threshold") return RoutingKind::threshold;
  if (name == kTokenChoice || name == "token_choice") return RoutingKind::token_choice;
  fail_usage("unknown routing rule '{}'; choose token_choice, expert_choice or threshold", name);
}

const char* routing_kind_name(RoutingKind kind) {
  if (kind == RoutingKind::expert_choice) return kExpertChoice;
  return kind == RoutingKind::threshold ? kAdaptive : kTokenChoice;
}

RouteOptions route_options(const RouteOptions& settings, int64_t group_size) {
  if (settings.kind == RoutingKind::threshold) {
    return {.kind = settings.kind, .threshold = settings.threshold};
  }
  RouteOptions options = settings;
  options.group_size = group_size;
  options.kept.clear();
  return options;
}

ConfigProblem routing_problem(const RouteOptions& routing, const RouterContext& place) {
  if (routing.is_token_choice() && routing.k > place.num_experts) {
    return {
        fmt::format("{0}num_selected_experts is {1}, but there are {2} experts; choose at most {2}",
                    place.router, routing.k, place.num_experts),
        {place.router + "num_selected_experts", place.experts_key}};
  }
  if (ConfigProblem problem = foreign_problem(routing, place); !problem.empty()) return problem;
  if (routing.kind == RoutingKind::threshold) return adaptive_problem(routing, place);
  ConfigProblem problem = dispatcher_problem(routing, place);
  if (!problem.empty() || routing.is_token_choice()) return problem;
  return expert_choice_problem(routing, place);
}

ConfigProblem config_problem(const Upcycling& config) {
  if (config.num_selected_experts <= config.num_experts) return {};
  return {fmt::format("num_selected_experts is {}, but there are {} experts; choose at most {}",
                      config.num_selected_experts, config.num_experts, config.num_experts),
          {"num_selected_experts", "num_experts"}};
}

ConfigProblem capacity_problem(const RouteOptions& routing, const RouterContext& place) {
  const bool is_rerouted = routing.pruned != PrunedSelection::zero && place.is_pruned;
  if (place.group_size == 0 || is_rerouted) return {};
  const int64_t choices = routing.is_expert_choice() ? 1 : routing.k;
  const std::pair<const char*, double> factors[] = {
      {"capacity_factor", routing.capacity.factor},
      {"evaluation_capacity_factor", routing.capacity.evaluation_factor.value_or(0.0)}};
  for (const auto& [name, factor] : factors) {
    CapacityRule rule = routing.capacity;
    rule.factor = factor;
    rule.rows = 0;
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

ConfigProblem mean_replacement_problem(bool mean_replacement, const RouteOptions& routing,
                                       const std::string& router, const std::string& key) {
  if (!mean_replacement || routing.pruned == PrunedSelection::zero) return {};
  return {fmt::format("{} needs {}pruned_selection to be 'zero', found 'reroute'", key, router),
          {key, router + "pruned_selection"}};
}

}  // namespace moesaic
