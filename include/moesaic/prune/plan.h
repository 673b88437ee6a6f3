// SPDX-License-Identifier: Apache-2.0
// Which experts stay (a plan), and the surgery that removes the others.
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
  int64_t experts = 0;         ///< E, rows of the router
  std::vector<int64_t> kept;   ///< ascending
  std::vector<double> scores;  ///< E of them
};

struct PrunePlan {
  std::string criterion;
  std::vector<PruneLayerPlan> layers;  ///< every MoE layer, in order
};

/// Ranks the experts of every MoE layer and keeps the best (pruning paper, sec. 3.2); a tie keeps
/// the lower expert. Of a layer that was pruned before, only experts that are still there can be
/// kept. `pretrained` may be null where the criterion does not need it; `seed` matters to "random"
/// only.
///
/// Throws Error (usage) that names the block and the numbers where fewer experts would stay than a
/// token selects, more than there are, or one that is gone; and what expert_scores() and KeepSpec
/// throw.
PrunePlan plan_pruning(const Model& finetuned, const Model* pretrained,
                       const std::string& criterion, const KeepSpec& keep, uint64_t seed = 0);

/// Throws Error (usage), as plan_pruning() would, where `keep` does not fit the experts of this
/// network.
void check_keep(const Model& model, const KeepSpec& keep);

/// Removes the experts that the plan does not keep: the stacked weights shrink, the routers keep
/// all rows. Throws Error for a plan of another network, before anything is removed.
void apply_plan(Model& model, const PrunePlan& plan);

/// {"criterion", "layers": [{"layer": block, "experts": E, "kept": [ids], "scores": [E numbers]}]}
nlohmann::ordered_json to_json(const PrunePlan& plan);

}  // namespace moesaic
