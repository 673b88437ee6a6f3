// SPDX-License-Identifier: Apache-2.0
#include "moesaic/train/phase_entry.h"

#include "moesaic/prune/criteria.h"

namespace moesaic {

std::optional<PrunePlan> apply_entry(Model& model, const EntryConfig& entry,
                                     const EntryContext& context) {
  std::optional<PrunePlan> plan;
  if (entry.prune) {
    const PrunePhaseConfig& prune = *entry.prune;
    std::optional<ExpertUse> use;
    if (needs_images(prune)) use = context.calibrate();
    plan = plan_pruning(
        {.finetuned = model, .pretrained = context.pretrained.get(), .use = use ? &*use : nullptr},
        {.criterion = prune.criterion,
         .keep = KeepSpec::from_value(prune.keep),
         .replace = prune.replace,
         .seed = context.seed});
    apply_plan(model, *plan);
  }
  if (entry.new_head) model.reset_head(context.classes);
  return plan;
}

bool needs_images(const PrunePhaseConfig& prune) {
  return prune.replace == kReplaceByMean || criterion_needs_images(prune.criterion);
}

}  // namespace moesaic
