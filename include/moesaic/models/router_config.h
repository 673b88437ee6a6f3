// SPDX-License-Identifier: Apache-2.0
// RouteOptions as settings, which every family with a router has; and settings of upcycling.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "moesaic/config/schema.h"
#include "moesaic/nn/router.h"
#include "moesaic/ops/enum_names.h"

namespace moesaic {

// Upper bounds far above any router that fits into memory. The bounds keep products of settings
// within 64 bits and reject typing errors.
inline constexpr double kMaxExperts = 65536, kMaxTokens = 2147483647;
inline constexpr double kMaxCapacityFactor = 1e6, kMaxNoise = 1e6, kMaxLogit = 1e6;

/// Declares a setting whose value is an enumerator, by its name among `names`.
template <class Enum>
void describe_enum(auto& f, const char* key, Enum& value, const std::vector<std::string>& names,
                   const char* help, const auto&... rules) {
  std::string name = names.at(static_cast<size_t>(value));
  f(key, name, help, rules...);
  value = ops::enum_from_name<Enum>(key, name, names);
}

/// The settings of an object `dispatcher`, with the names of the V-MoE reference.
void describe(auto& f, CapacityRule& c) {
  f("capacity", c.rows,
    "number of rows per expert and group (expert capacity); 0: by capacity_factor",
    between(0, kMaxTokens));
  f("capacity_factor", c.factor,
    "expert capacity relative to a uniform load; 0: unlimited, no token is dropped",
    between(0.0, kMaxCapacityFactor));
  describe_enum(f, "capacity_rounding", c.rounding, capacity_rounding_names(),
                "rounding of the expert capacity to a whole number",
                one_of(capacity_rounding_names()), renamed_from("capacity_ceil_or_round"));
  f("capacity_multiple_of", c.multiple_of,
    "multiple to which the expert capacity is rounded up; 1: no rounding", between(1, kMaxTokens));
  f("batch_priority", c.batch_priority,
    "batch priority routing: tokens queue by their largest gate instead of their position");
  f("evaluation_capacity_factor", c.evaluation_factor,
    "capacity factor outside of training, instead of capacity and capacity_factor; 0: unlimited, "
    "no token is dropped; null: the same as in training",
    between(0.0, kMaxCapacityFactor));
}

inline constexpr const char* kTokenChoice = "NoisyTopExpertsPerItemRouter";
inline constexpr const char* kExpertChoice = "NoisyTopItemsPerExpertRouter";
inline constexpr const char* kAdaptive = "adaptive";

/// Returns the rule of this name, the reference's or the short one: "token_choice",
/// "expert_choice" or "threshold". Throws Error (usage) for another.
RoutingKind routing_kind_from_name(const std::string& name);
/// Returns the reference's name of a rule, which checkpoints have.
const char* routing_kind_name(RoutingKind kind);

/// The settings of a router's rule, with the names of the V-MoE reference. Its capacity, groups and
/// kept experts are settings of their own in each family.
void describe(auto& f, RouteOptions& c) {
  std::string name = routing_kind_name(c.kind);
  f("name", name,
    "routing rule; token_choice: tokens choose experts; expert_choice: experts choose tokens; "
    "threshold or adaptive: each token goes to all experts whose logit reaches the threshold; "
    "NoisyTopExpertsPerItemRouter and NoisyTopItemsPerExpertRouter: V-MoE's names of token_choice "
    "and expert_choice",
    one_of({"token_choice", "expert_choice", "threshold", kTokenChoice, kExpertChoice, kAdaptive}));
  c.kind = routing_kind_from_name(name);
  f("num_selected_experts", c.k, "number of experts per token (top-k)", between(1, kMaxExperts),
    known_as({"top_k", "topk", "num_experts_per_tok", "moe_top_k"}));
  f("num_selected_tokens", c.l,
    "number of tokens of a group that each expert selects, in expert choice; 0: as many as its "
    "capacity",
    between(0, kMaxTokens));
  f("threshold", c.threshold, "lowest logit that selects an expert, in threshold routing",
    between(-kMaxLogit, kMaxLogit));
  describe_enum(
      f, "gate", c.gate, gate_names(),
      "formula of the gates; softmax_all: softmax of the logits over all experts; "
      "softmax_selected: over the selected experts (in expert choice: the selected tokens); "
      "softmax_tokens: over all tokens; logit: the logit itself; one: 1",
      one_of({"softmax_all", "softmax_selected", "softmax_tokens", "logit", "one"}));
  describe_enum(f, "pruned_selection", c.pruned, pruned_selection_names(),
                "treatment of removed experts; zero: tokens may select them, without an output; "
                "reroute: tokens select among the kept experts",
                one_of(pruned_selection_names()), renamed_from("pruned"));
}

/// Context of a router for checks: its sizes, and the paths of its settings within the model.
struct RouterContext {
  int64_t num_experts = 0;  ///< Number of experts, E.
  int64_t group_size = 0;   ///< Tokens that are routed together; 0 means all.
  bool is_pruned = false;
  std::string router = "router.";  ///< Prefix of the settings of RouteOptions.
  std::string group_size_key = "router.group_size";
  std::string experts_key = "num_experts";
};

/// Returns the options of a router with all its experts, of which settings that its rule does not
/// have are at their defaults.
RouteOptions route_options(const RouteOptions& settings, int64_t group_size);

/// Returns what is wrong with settings of a rule that exclude each other.
ConfigProblem routing_problem(const RouteOptions& routing, const RouterContext& place);
/// Returns what is wrong with a capacity factor that gives an expert less than one row of a group.
ConfigProblem capacity_problem(const RouteOptions& routing, const RouterContext& place);
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
ConfigProblem mean_replacement_problem(bool mean_replacement, const RouteOptions& routing,
                                       const std::string& router, const std::string& key);

/// Sparse upcycling (Komatsuzaki et al., arXiv:2212.05055): the MLPs of some blocks become mixtures
/// of experts that begin as copies of them. No token is dropped. With the gate softmax_selected,
/// the gates of a token's experts sum to 1, so that the network begins with the outputs of the
/// dense one.
struct Upcycling {
  int64_t num_experts = 0;           ///< 0: the network stays dense.
  std::vector<int64_t> layers = {};  ///< Blocks with experts, from 0.
  int64_t num_selected_experts = 2;  ///< Experts for each token, k.
  /// Standard deviation of normal noise on the experts' weights, relative to that of each weight
  /// tensor; 0: the experts begin equal.
  double noise = 0.0;
  Gate gate = Gate::softmax_selected;  ///< softmax_selected or softmax_all.
};
void describe(auto& f, Upcycling& c) {
  f("num_experts", c.num_experts, "number of experts per layer", required, between(1, kMaxExperts));
  f("layers", c.layers, "indices of the blocks (from 0) whose MLP becomes a mixture of experts",
    required, not_empty, at_least(0));
  f("num_selected_experts", c.num_selected_experts, "number of experts per token (top-k)",
    between(1, kMaxExperts));
  f("noise", c.noise,
    "standard deviation of normal noise on the experts' weights, relative to the standard "
    "deviation of each weight tensor; 0: experts begin equal and differ by their gates alone",
    at_least(0.0));
  describe_enum(
      f, "gate", c.gate, gate_names(),
      "formula of the gates; softmax_selected: softmax over the selected experts, so that "
      "the network begins with the outputs of the dense one; of one expert it is 1, and "
      "auxiliary losses alone train the router; softmax_all: softmax over all experts",
      one_of({"softmax_selected", "softmax_all"}));
}
/// Returns what is wrong with settings that together make no mixture.
ConfigProblem config_problem(const Upcycling& config);

}  // namespace moesaic
