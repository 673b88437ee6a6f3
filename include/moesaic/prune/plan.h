// SPDX-License-Identifier: Apache-2.0
// Pruning plans: which experts to keep, and the removal of the others.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "moesaic/config/schema.h"
#include "moesaic/models/model.h"
#include "moesaic/prune/expert_use.h"
#include "moesaic/prune/keep_spec.h"

namespace moesaic {

struct PruneLayerPlan {
  int64_t block = 0;
  int64_t experts = 0;         ///< Number of experts E, the rows of the router.
  std::vector<int64_t> kept;   ///< Indices of the experts to keep, ascending.
  std::vector<double> scores;  ///< Scores of all experts, [E]; empty in a plan made by hand.
  int64_t groups = 1;          ///< Groups that are ranked apart, of E / G experts in turn.
  at::Tensor means_Eo;         ///< What experts leave behind, see PrunePlan::replace.
};
template <class Fields>
void describe(Fields& f, PruneLayerPlan& c) {
  f("layer", c.block, "block whose experts these are", required, at_least(0));
  f("experts", c.experts, "experts of its router", required, at_least(1));
  f("kept", c.kept, "those that stay, ascending", required, not_empty, at_least(0));
  f("scores", c.scores, "of all of them, by which they were chosen");
}
ConfigProblem config_problem(const PruneLayerPlan& layer);

/// What a token gets of a removed expert that it selects: nothing, or the expert's mean output.
inline constexpr const char *kReplaceByNothing = "nothing", *kReplaceByMean = "mean";

struct PrunePlan {
  std::string criterion;
  std::vector<PruneLayerPlan> layers;  ///< Plans of all MoE layers, by block.
  std::string replace = kReplaceByNothing;
  std::string where = {};  ///< The file that it was read from, for messages.
};
template <class Fields>
void describe(Fields& f, PrunePlan& c) {
  f("criterion", c.criterion, "what ranked the experts; empty: nobody did");
  f("replace", c.replace, "what removed experts leave behind",
    one_of({kReplaceByNothing, kReplaceByMean}));
  f("layers", c.layers, "a plan for each layer that changes", required, not_empty);
}
ConfigProblem config_problem(const PrunePlan& plan);

/// Reads a plan from a JSON file, as to_json(plan) writes it. Throws Error (usage) with line and
/// column.
PrunePlan read_plan(const std::filesystem::path& path);

/// What experts are chosen by. Networks may be on the meta device, with their values apart.
struct PruneInput {
  const Model& finetuned;
  const Model* pretrained = nullptr;            ///< For criteria that compare.
  const ExpertUse* use = nullptr;               ///< For criteria that need images, and for means.
  const TensorMap* finetuned_values = nullptr;  ///< Null: its own.
  const TensorMap* pretrained_values = nullptr;
};

struct PruneOptions {
  std::string criterion = "router-norm-change";
  KeepSpec keep = KeepSpec::fraction(1.0);
  std::optional<std::string> replace;  ///< By default nothing, or what a plan that is read says.
  uint64_t seed = 0;                   ///< Of "random".
};

/// Ranks the experts of every MoE layer by score and keeps the best (pruning paper, sec. 3.2), each
/// of a layer's groups apart (MoEBlock::groups; in an ensemble those are its members, sec. 5), or
/// in the scope of the network all experts together; the lower index wins a tie. Fractions and
/// counts are of a group's experts, in the scope of the network of all; ids count over all groups.
/// In a layer that was pruned before, only the remaining experts can be kept. Of a group at least
/// as many stay as a token selects.
///
/// Throws Error (usage) with the block, the group and the numbers if fewer experts would remain
/// than a token selects, if more are requested than exist, or if a requested one was removed
/// before; also what expert_scores() and KeepSpec throw. Throws Error (failure) that names the
/// tensor if either network has a number that is not finite.
PrunePlan plan_pruning(const PruneInput& input, const PruneOptions& options);
PrunePlan plan_pruning(const Model& finetuned, const Model* pretrained,
                       const std::string& criterion, const KeepSpec& keep, uint64_t seed = 0);

/// Adds to a plan that was read what its network and the use of its experts say.
void complete_plan(PrunePlan& plan, const Model& model, const ExpertUse* use);

using ExpertScores = std::map<int64_t, std::vector<double>>;  ///< By block, [E].
using KeptExperts = std::map<int64_t, std::vector<int64_t>>;  ///< By block, ascending.

/// Returns the experts that each layer keeps by these scores. Throws Error (usage), as
/// plan_pruning() does.
KeptExperts choose_experts(const Model& model, const KeepSpec& keep, const ExpertScores& scores);

/// Checks `keep` against the experts of the network and returns what it would keep of experts that
/// are all equal. Throws Error (usage), as plan_pruning() would.
KeptExperts check_keep(const Model& model, const KeepSpec& keep);

/// Returns the `count` experts of highest score of each of the layer's groups, or of a smaller one
/// all that it has, but never fewer than a token selects.
std::vector<int64_t> best_experts(const MoEBlock& block, const std::vector<double>& scores,
                                  int64_t count);

/// Numbers of experts, of the network or of each group, between which a search chooses.
struct CountRange {
  int64_t least;  ///< Of fewer no token could select its experts.
  int64_t most;   ///< Removes none.
};

/// Returns the range of the scope of `keep`, over the blocks that it does not leave whole.
CountRange count_range(const Model& model, const KeepSpec& keep);

/// Returns `kept` without the expert of lowest score of each of the layer's groups that has more
/// than a token selects; nothing where none has.
std::optional<std::vector<int64_t>> without_worst(const MoEBlock& block,
                                                  const std::vector<int64_t>& kept,
                                                  const std::vector<double>& scores);

/// Returns the first experts of each group, as many as the rule keeps: the shape of a pruned layer
/// before there are scores. Checks nothing.
std::vector<int64_t> first_experts(const KeepRule& rule, const MoEBlock& block);

/// Returns why experts that are removed from the network cannot leave this behind, "" where they
/// can: what earlier ones left, and routing past pruned experts, decide.
std::string replacement_problem(const Model& model, const std::string& replace);

/// Returns why the plan is not one of this network, "" where it is.
std::string plan_problem(const Model& model, const PrunePlan& plan);

/// Removes the experts that the plan does not keep: the stacked weights shrink, the routers keep
/// all rows. Throws Error for a plan of another network, before anything is removed.
void apply_plan(Model& model, const PrunePlan& plan);

/// Returns what ParameterValues of a network finds: the tensors of `values` by the names of the
/// network's parameters, or its own where `values` is null.
nn::ParameterValues values_for(const Model& model, const TensorMap* values);

}  // namespace moesaic
