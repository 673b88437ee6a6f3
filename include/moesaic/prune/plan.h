// SPDX-License-Identifier: Apache-2.0
// Pruning plans: which experts to keep, and the removal of the others.
#pragma once

#include <utility>
#include <variant>

#include "moesaic/base/filesystem.h"
#include "moesaic/prune/criteria.h"

namespace moesaic {

/// A fraction of each layer's experts.
struct KeepFraction {
  double fraction = 1.0;  ///< Of a layer's (in an ensemble, a member's) experts, in (0, 1].
};

/// A bound on the parameters of the whole network, from which counts follow.
struct KeepParameters {
  double fraction = 1.0;  ///< Fraction of the network's parameters, in (0, 1].
};

/// What one layer keeps, or all layers together, and where that was specified (for messages).
struct KeepRule {
  /// A fraction or a count of experts (in an ensemble, of each member's), ascending indices of
  /// experts over all members, or a fraction of parameters.
  std::variant<KeepFraction, int64_t, std::vector<int64_t>, KeepParameters> amount;
  std::string where;

  /// Returns the number of experts to keep of `experts`: a fraction is rounded to the nearest
  /// number, halves up, and gives at least 1.
  int64_t count(int64_t experts) const;
  /// Returns the list of experts, or nullptr if the rule is something else.
  const std::vector<int64_t>* ids() const { return std::get_if<std::vector<int64_t>>(&amount); }
  /// Returns the fraction of parameters, or nullptr if the rule is something else.
  const double* parameters() const;
};

/// Experts among which a rule chooses: those of each layer (in an ensemble, of each member), or
/// those of all layers together, whose scores are compared without scaling.
enum class KeepScope { layer, network };

/// Returns the enumerators' names in their order.
std::vector<std::string> keep_scope_names();

/// One rule for all layers, or rules for some blocks; the other layers stay unchanged.
class KeepSpec {
 public:
  /// Parses "0.25" as a fraction (any number with a point or an exponent), "4" as a count, and
  /// anything else as the path of a JSON file {"<block>": count | [ids], ...}. Throws Error
  /// (usage), for a file with line and column. `where` is the origin of the text if it is not the
  /// command line.
  static KeepSpec parse(const std::string& text, const std::string& where = {});
  /// Reads a KeepSpec from a configuration: a number with a fraction, an integer, a string for
  /// parse(), an object of blocks as in a file of parse(); or an object {"fraction", "count" or
  /// "parameters": number, "scope": "layer" or "network", "exclude_blocks": [blocks]}.
  static KeepSpec from_value(const Value& value);

  /// Keeps every expert.
  KeepSpec() = default;
  /// Keeps a fraction of each layer's experts.
  static KeepSpec fraction(double fraction, const std::string& where = "keep");
  /// Keeps a number of each layer's experts.
  static KeepSpec count(int64_t count, const std::string& where = "keep");
  /// Keeps as many experts as fit into this fraction of the network's parameters, the same number
  /// in every layer or, in the scope of the network, those of highest score.
  static KeepSpec parameters(double fraction, const std::string& where = "keep");

  /// Lets the rule for all layers choose among experts of this scope. Throws Error (usage) where
  /// there are rules for blocks.
  void set_scope(KeepScope scope);
  /// Leaves these blocks unchanged. Throws Error (usage) likewise.
  void exclude_blocks(std::vector<int64_t> blocks);

  /// Returns what the rule is applied to.
  KeepScope scope() const { return scope_; }
  /// Returns the blocks that stay unchanged.
  const std::vector<int64_t>& excluded_blocks() const { return excluded_blocks_; }
  /// Returns the rule of a block, or nullptr if the block stays unchanged.
  const KeepRule* rule_of(int64_t block) const;
  /// Returns the rule for all layers together, or nullptr if each layer has its own.
  const KeepRule* rule_of_network() const;
  /// Returns whether the experts of one layer depend on those of others: a rule for all layers
  /// together, or a bound on all parameters.
  bool chooses_among_layers() const {
    return every_ && (scope_ == KeepScope::network || every_->parameters() != nullptr);
  }
  /// Throws Error (usage) with the position of a rule whose block is not among `blocks`.
  void check_blocks(const std::vector<int64_t>& blocks) const;

 private:
  KeepSpec(KeepRule every) : every_(std::move(every)) {}
  static KeepSpec of_blocks(const Value& object);
  static KeepSpec of_settings(const Value& object);

  std::optional<KeepRule> every_;
  std::map<int64_t, KeepRule> blocks_;
  KeepScope scope_ = KeepScope::layer;
  std::vector<int64_t> excluded_blocks_;
};

/// The experts of a layer to keep.
struct PruneLayerPlan {
  int64_t block = 0;
  int64_t num_experts = 0;     ///< Number of experts E, the rows of the router.
  std::vector<int64_t> kept;   ///< Indices of the experts to keep, ascending.
  std::vector<double> scores;  ///< Scores of all experts, [E]; empty in a plan made by hand.
  int64_t num_groups = 1;      ///< Groups that are ranked apart, of E / G experts in turn.
  at::Tensor means_Eo;         ///< Mean outputs for replacements, see PrunePlan::replace.
  at::Tensor rows_E;           ///< Rows of each expert, for plan_merge().
  at::Tensor products_EE;      ///< See ExpertRanking.
};
void describe(auto& f, PruneLayerPlan& c) {
  f("layer", c.block, "index of the block with these experts", required, at_least(0));
  f("experts", c.num_experts, "number of experts of the block's router", required, at_least(1));
  f("kept", c.kept, "indices of the kept experts, ascending", required, not_empty, at_least(0));
  f("scores", c.scores,
    "scores of all experts, by which the kept ones were chosen; empty: unknown");
}
ConfigProblem config_problem(const PruneLayerPlan& layer);

/// Replacements of a removed expert for a token that selects it: no output, the expert's mean
/// output, or the output of the kept expert that it was merged into (plan_merge()); or the token
/// is rerouted to the experts that are left.
inline constexpr const char *kReplaceByNothing = "nothing", *kReplaceByMean = "mean",
                            *kMerge = "merge", *kReroute = "reroute";
/// Returns the names of all replacements.
inline std::vector<std::string> replacement_names() {
  return {kReplaceByNothing, kReplaceByMean, kMerge, kReroute};
}
/// Returns whether a replacement needs calibration images.
inline bool replacement_needs_images(const std::optional<std::string>& replace) {
  return replace == kReplaceByMean || replace == kMerge;
}
/// Meaning of each replacement, for the setting and the option `replace`.
inline constexpr const char* kReplaceHelp =
    "replacement of a removed expert for the tokens that select it; nothing: no output; mean: its "
    "mean output on calibration images; merge: the kept expert with the most similar mean output, "
    "where the weights of both are averaged in proportion to their tokens; reroute: an expert "
    "selected among the kept ones";
/// The replacement where none is given.
inline constexpr const char* kReplaceDefaultHelp =
    "reroute if the network reroutes already, else nothing";
/// Meaning of the setting `replace`.
inline std::string replace_help() {
  return std::string(kReplaceHelp) + "; null: " + kReplaceDefaultHelp;
}

/// What ranks experts, and what replaces those that are removed, by default default_replacement().
struct CriterionChoice {
  std::string criterion;
  std::optional<std::string> replace;

  /// Reads "random", or with a replacement "random.mean"; checks neither name.
  static CriterionChoice parse(const std::string& text);
};

/// Returns the default of PrunePlan::replace: "reroute" for a network that reroutes already.
std::string default_replacement(const Model& model);

/// The experts of a network to keep.
struct PrunePlan {
  std::string criterion;
  std::vector<PruneLayerPlan> layers;       ///< Plans of all MoE layers, by block.
  std::optional<std::string> replace = {};  ///< By default default_replacement().
  std::string where = {};                   ///< The file that it was read from, for messages.
};
void describe(auto& f, PrunePlan& c) {
  f("criterion", c.criterion, "criterion that ranked the experts; empty: none");
  f("replace", c.replace, replace_help(), one_of(replacement_names()));
  f("layers", c.layers, "plans of the layers that change, one each", required, not_empty);
}
ConfigProblem config_problem(const PrunePlan& plan);

/// Reads a plan from a JSON file, as to_json(plan) writes it. Throws Error (usage) with line and
/// column.
PrunePlan read_plan(const fs::path& path);

/// What experts are chosen by. Networks may be on the meta device, with their values apart.
struct PruneInput {
  const Model& finetuned;
  const Model* pretrained = nullptr;             ///< For criteria that compare; else null.
  const ExpertStatistics* statistics = nullptr;  ///< For criteria and replacements that need
                                                 ///< images; else null.
  const TensorMap* finetuned_values = nullptr;   ///< Null: its own.
  const TensorMap* pretrained_values = nullptr;
};

/// Options of plan_pruning().
struct PruneOptions {
  std::string criterion = "router-norm-change";
  KeepSpec keep = KeepSpec::fraction(1.0);
  std::optional<std::string> replace;  ///< By default default_replacement(), or what a plan that
                                       ///< is read says.
  uint64_t seed = 0;                   ///< Seed of the criterion "random".
};

/// Ranks the experts of every MoE layer by score and keeps the best (pruning paper, sec. 3.2), each
/// of a layer's groups apart (MoEBlock::num_groups; in an ensemble those are its members, sec. 5),
/// or in the scope of the network all experts together; the lower index wins a tie. Fractions and
/// counts are of a group's experts, in the scope of the network of all; ids count over all groups.
/// In a layer that was pruned before, only the remaining experts can be kept. Of a group at least
/// as many stay as a token selects.
///
/// Throws Error (usage) with the block, the group and the numbers if fewer experts would remain
/// than a token selects, if more are requested than exist, or if a requested one was removed
/// before; also what expert_scores() and KeepSpec throw. Throws Error (failure) that names the
/// tensor if either network has a number that is not finite.
PrunePlan plan_pruning(const PruneInput& input, const PruneOptions& options);

/// Completes a plan that was read from a file by its network and the statistics of its experts,
/// which may be null.
void complete_plan(PrunePlan& plan, const Model& model, const ExpertStatistics* statistics);

/// Warns if all experts among which a token chooses have the same score, since the choice is then
/// arbitrary. plan_pruning() does so itself.
void warn_of_ties(const PrunePlan& plan);

/// What the experts of a layer are chosen by.
struct ExpertRanking {
  std::vector<double> scores;   ///< [E].
  at::Tensor products_EE = {};  ///< Where defined, each group keeps its best_subset(); in the scope
                                ///< of the network scores alone choose.
};
using ExpertRankings = std::map<int64_t, ExpertRanking>;      ///< Rankings by block.
using KeptExperts = std::map<int64_t, std::vector<int64_t>>;  ///< Ascending ids by block.

/// Returns the experts that each layer keeps by these rankings. Throws Error (usage), as
/// plan_pruning() does.
KeptExperts choose_experts(const Model& model, const KeepSpec& keep,
                           const ExpertRankings& rankings);

/// Checks `keep` against the experts of the network and returns what it would keep of experts that
/// are all equal. Throws Error (usage), as plan_pruning() would.
KeptExperts check_keep(const Model& model, const KeepSpec& keep);

/// Returns the `count` best experts of each of the layer's groups, or of a smaller one all that it
/// has, but never fewer than a token selects.
std::vector<int64_t> best_experts(const MoEBlock& block, const ExpertRanking& ranking,
                                  int64_t count);

/// Numbers of experts, of the network or of each group, between which a search chooses.
struct CountRange {
  int64_t min;  ///< Smallest number among which a token can select its experts.
  int64_t max;  ///< Number of all experts, of which none is removed.
};

/// Returns the range of the scope of `keep`, over the blocks that it does not leave whole.
CountRange count_range(const Model& model, const KeepSpec& keep);

/// Returns `kept` without the worst expert of each of the layer's groups that has more than a token
/// selects; nothing where none has.
std::optional<std::vector<int64_t>> without_worst(const MoEBlock& block,
                                                  const std::vector<int64_t>& kept,
                                                  const ExpertRanking& ranking);

/// Returns the first experts of each group, as many as the rule keeps: the shape of a pruned layer
/// before there are scores. Checks nothing.
std::vector<int64_t> first_experts(const KeepRule& rule, const MoEBlock& block);

/// Returns why removed experts of the network cannot have this replacement, and which ones they can
/// have; "" where they can. Replacements of experts removed earlier, and rerouting, exclude others.
std::string replacement_problem(const Model& model, const std::string& replace);

/// Returns why the plan is not one of this network, "" where it is.
std::string plan_problem(const Model& model, const PrunePlan& plan);

/// Returns what is wrong with keeping only these experts of a block, "" if nothing is: fewer of a
/// group than a token selects.
std::string too_few_problem(const MoEBlock& block, const std::vector<int64_t>& kept);

/// Removes the experts that the plan does not keep: the stacked weights shrink, the routers keep
/// all rows; or reroutes the tokens of all layers. Throws Error (usage) for a plan of another
/// network, before anything is removed.
void apply_plan(Model& model, const PrunePlan& plan);

/// Keeps only these experts of a layer on the meta device; replacements have no values yet.
void keep_meta_experts(const MoEBlock& block, const std::vector<int64_t>& ids,
                       const std::string& replace);

/// What merging makes of a layer's experts.
struct MergePlan {
  std::vector<int64_t> into;  ///< c: of each of the E experts the kept one that takes its tokens.
  at::Tensor weights_PP;  ///< Weights of the P present experts in each of them, float64; rows sum
                          ///< to 1, and those of experts that are removed mean nothing.
};

/// Returns how the removed experts of a layer are merged into the kept ones of the plan (M-SMoE,
/// arXiv 2310.01334; HC-SMoE, arXiv 2410.08589), each within its group (in an ensemble, its
/// member). With the mean output m_e of an expert over its n_e rows of the calibration images,
///
///     c(e) = argmax over kept k of <m_e, m_k> / (|m_e| |m_k|),  c(k) = k
///     W_k  <- sum_{e: c(e) = k} n_e W_e / sum_{e: c(e) = k} n_e
///
/// for all weights and biases W; where no expert of a sum has a row, W_k stays. The lower index
/// wins a tie. Neurons are not permuted first, as in HC-SMoE. The router keeps its rows, and tokens
/// select among all E experts with the gates of before; tokens of a removed expert go to the one
/// that it is merged into, which computes a token once:
///
///     y(x) = sum_k (sum_{e selected by x, c(e) = k} g_e(x)) E_k(x)
///
/// Capacities are those of the E experts, each for the tokens that select it. An expert that was
/// merged before goes where that one goes. Without means in the plan, of a network on the meta
/// device, the first kept expert of each group takes all.
MergePlan plan_merge(const MoEBlock& block, const PruneLayerPlan& layer);

}  // namespace moesaic
