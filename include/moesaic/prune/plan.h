// SPDX-License-Identifier: Apache-2.0
// Pruning plans: which experts to keep, and the removal of the others.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "moesaic/models/model.h"
#include "moesaic/prune/keep_spec.h"

namespace moesaic {

struct PruneLayerPlan {
  int64_t block = 0;
  int64_t experts = 0;         ///< Number of experts E, the rows of the router.
  std::vector<int64_t> kept;   ///< Indices of the experts to keep, ascending.
  std::vector<double> scores;  ///< Scores of all experts, [E].
  int64_t members = 1;         ///< Members of an ensemble; each owns E / M experts in turn.
};

struct PrunePlan {
  std::string criterion;
  std::vector<PruneLayerPlan> layers;  ///< Plans of all MoE layers, by block.
};

/// Ranks the experts of every MoE layer by score and keeps the best (pruning paper, sec. 3.2), in
/// an ensemble separately for each member (sec. 5); the lower index wins a tie. Fractions and
/// counts are of a member's experts, ids count over all members. In a layer that was pruned before,
/// only the remaining experts can be kept. `pretrained` may be null if the criterion does not need
/// it; only "random" uses `seed`.
///
/// Throws Error (usage) with the block, the member and the numbers if fewer experts would remain
/// than a token selects, if more are requested than exist, or if a requested one was removed
/// before; also what expert_scores() and KeepSpec throw. Throws Error (failure) that names the
/// tensor if either network has a number that is not finite.
PrunePlan plan_pruning(const Model& finetuned, const Model* pretrained,
                       const std::string& criterion, const KeepSpec& keep, uint64_t seed = 0);

/// Checks `keep` against the experts of the network. Throws Error (usage), as plan_pruning() would.
void check_keep(const Model& model, const KeepSpec& keep);

/// Returns the first experts of each member, as many as the rule keeps: the shape of a pruned layer
/// before there are scores. Checks nothing.
std::vector<int64_t> first_experts(const KeepRule& rule, const MoEBlock& block);

/// Removes the experts that the plan does not keep: the stacked weights shrink, the routers keep
/// all rows. Throws Error for a plan of another network, before anything is removed.
void apply_plan(Model& model, const PrunePlan& plan);

/// Returns {"criterion", "layers": [{"layer": block, "experts": E, "kept": [ids], "scores": [E]}]}.
nlohmann::ordered_json to_json(const PrunePlan& plan);

}  // namespace moesaic
