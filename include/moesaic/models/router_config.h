// SPDX-License-Identifier: Apache-2.0
// Settings of routers, which every family embeds: the routing rule and the capacity of experts; and
// those of upcycling.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "moesaic/config/schema.h"
#include "moesaic/nn/router.h"

namespace moesaic {

// Upper bounds far above any router that fits into memory. The bounds keep products of settings
// within 64 bits and reject typing errors.
inline constexpr double kMaxExperts = 65536, kMaxTokens = 2147483647;
inline constexpr double kMaxCapacityFactor = 1e6, kMaxNoise = 1e6, kMaxLogit = 1e6;

/// Capacity of an expert and priority of its tokens, with the names of the V-MoE reference.
struct DispatcherConfig {
  int64_t capacity = 0;
  double capacity_factor = 0.0;
  std::string capacity_rounding = "ceil";
  int64_t capacity_multiple_of = 4;
  bool batch_priority = false;
  std::optional<double> evaluation_capacity_factor;

  /// Returns whether an expert's rows are limited.
  bool has_capacity() const { return capacity > 0 || capacity_factor > 0.0; }
};
void describe(auto& f, DispatcherConfig& c) {
  f("capacity", c.capacity,
    "number of rows per expert and group (expert capacity); 0: by capacity_factor",
    between(0, kMaxTokens));
  f("capacity_factor", c.capacity_factor,
    "expert capacity relative to a uniform load; 0: unlimited, no token is dropped",
    between(0.0, kMaxCapacityFactor));
  f("capacity_rounding", c.capacity_rounding, "rounding of the expert capacity to a whole number",
    one_of(capacity_rounding_names()), renamed_from("capacity_ceil_or_round"));
  f("capacity_multiple_of", c.capacity_multiple_of,
    "multiple to which the expert capacity is rounded up; 1: no rounding", between(1, kMaxTokens));
  f("batch_priority", c.batch_priority,
    "batch priority routing: tokens queue by their largest gate instead of their position");
  f("evaluation_capacity_factor", c.evaluation_capacity_factor,
    "capacity factor outside of training, instead of capacity and capacity_factor; 0: unlimited, "
    "no token is dropped; null: the same as in training",
    between(0.0, kMaxCapacityFactor));
}

inline constexpr const char* kTokenChoice = "NoisyTopExpertsPerItemRouter";
inline constexpr const char* kExpertChoice = "NoisyTopItemsPerExpertRouter";
inline constexpr const char* kAdaptive = "adaptive";

/// Returns the reference's name of a rule for the short one: "token_choice", "expert_choice" or
/// "threshold"; other names as they are.
std::string full_router_name(const std::string& name);

/// Routing rule of a router, with the names of the V-MoE reference.
struct RoutingConfig {
  std::string name = kTokenChoice;
  int64_t num_selected_experts = 2;
  int64_t num_selected_tokens = 0;
  double threshold = 0.0;
  std::string gate = "softmax_all";
  std::string pruned_selection = "zero";

  /// Returns whether tokens choose a number of experts.
  bool is_token_choice() const { return name == kTokenChoice; }
  /// Returns whether experts choose tokens.
  bool is_expert_choice() const { return name == kExpertChoice; }
};
void describe(auto& f, RoutingConfig& c) {
  f("name", c.name,
    "routing rule; token_choice: tokens choose experts; expert_choice: experts choose tokens; "
    "threshold or adaptive: each token goes to all experts whose logit reaches the threshold; "
    "NoisyTopExpertsPerItemRouter and NoisyTopItemsPerExpertRouter: V-MoE's names of token_choice "
    "and expert_choice",
    one_of({"token_choice", "expert_choice", "threshold", kTokenChoice, kExpertChoice, kAdaptive}));
  c.name = full_router_name(c.name);  // Checkpoints have one name of a rule.
  f("num_selected_experts", c.num_selected_experts, "number of experts per token (top-k)",
    between(1, kMaxExperts));
  f("num_selected_tokens", c.num_selected_tokens,
    "number of tokens of a group that each expert selects, in expert choice; 0: as many as its "
    "capacity",
    between(0, kMaxTokens));
  f("threshold", c.threshold, "lowest logit that selects an expert, in threshold routing",
    between(-kMaxLogit, kMaxLogit));
  f("gate", c.gate,
    "formula of the gates; softmax_all: softmax of the logits over all experts; softmax_selected: "
    "over the selected experts (in expert choice: the selected tokens); softmax_tokens: over all "
    "tokens; logit: the logit itself; one: 1",
    one_of({"softmax_all", "softmax_selected", "softmax_tokens", "logit", "one"}));
  f("pruned_selection", c.pruned_selection,
    "treatment of removed experts; zero: tokens may select them, without an output; reroute: "
    "tokens select among the kept experts",
    one_of(pruned_selection_names()), renamed_from("pruned"));
}

/// Context of a router for checks: its sizes, and the paths of its settings within the model.
struct RouterContext {
  int64_t num_experts = 0;  ///< Number of experts, E.
  int64_t group_size = 0;   ///< Tokens that are routed together; 0 means all.
  bool is_pruned = false;
  std::string router = "router.";  ///< Prefix of the settings of RoutingConfig.
  std::string group_size_key = "router.group_size";
  std::string experts_key = "num_experts";
};

/// Returns the rule of a router with all its experts.
nn::RoutingRule routing_rule(const RoutingConfig& routing, const DispatcherConfig& dispatcher,
                             int64_t group_size);

/// Returns what is wrong with settings of a rule that exclude each other.
ConfigProblem routing_problem(const RoutingConfig& routing, const DispatcherConfig& dispatcher,
                              const RouterContext& place);
/// Returns what is wrong with a capacity factor that gives an expert less than one row of a group.
ConfigProblem capacity_problem(const RoutingConfig& routing, const DispatcherConfig& dispatcher,
                               const RouterContext& place);
/// Returns what is wrong with a list of the experts that pruning kept, which the message calls
/// `what`.
ConfigProblem kept_problem(const std::vector<int64_t>& kept, int64_t experts,
                           const std::string& what, const std::string& key);
/// Returns what is wrong with that list where empty means all experts.
ConfigProblem kept_setting_problem(const std::vector<int64_t>& kept, int64_t experts,
                                   const std::string& key);

inline constexpr const char* kMeanReplacementHelp =
    "mean outputs in place of removed experts, for tokens that still select them";

/// Returns what is wrong with mean replacement where no token selects a pruned expert.
ConfigProblem mean_replacement_problem(bool mean_replacement, const RoutingConfig& routing,
                                       const std::string& router, const std::string& key);

/// Sparse upcycling (Komatsuzaki et al., arXiv:2212.05055): the MLPs of some blocks become mixtures
/// of experts that begin as copies of them. The gates of a token's experts sum to 1 and no token is
/// dropped, so that the network begins with the outputs of the dense one.
struct Upcycling {
  int64_t num_experts = 0;           ///< 0: the network stays dense.
  std::vector<int64_t> layers = {};  ///< Blocks with experts, from 0.
  int64_t num_selected_experts = 2;  ///< Experts for each token, k.
  /// Standard deviation of normal noise on the experts' weights, relative to that of each weight
  /// tensor; 0: the experts begin equal.
  double noise = 0.0;
};
void describe(auto& f, Upcycling& c) {
  f("num_experts", c.num_experts, "number of experts per layer", required, between(1, kMaxExperts));
  f("layers", c.layers, "indices of the blocks (from 0) whose MLP becomes a mixture of experts",
    required, not_empty, at_least(0));
  f("num_selected_experts", c.num_selected_experts,
    "number of experts per token (top-k); with 1 each gate is 1, and auxiliary losses alone train "
    "the router",
    between(1, kMaxExperts));
  f("noise", c.noise,
    "standard deviation of normal noise on the experts' weights, relative to the standard "
    "deviation "
    "of each weight tensor; 0: experts begin equal and differ by their gates alone",
    at_least(0.0));
}

}  // namespace moesaic
