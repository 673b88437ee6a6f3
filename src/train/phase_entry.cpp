// SPDX-License-Identifier: Apache-2.0
#include "moesaic/train/phase_entry.h"

#include "moesaic/checkpoint/store.h"

namespace moesaic {

std::optional<PrunePlan> apply_entry(Model& model, const EntryConfig& entry, int64_t classes,
                                     const std::filesystem::path& pretrained, uint64_t seed) {
  std::optional<PrunePlan> plan;
  if (entry.prune) {
    const std::shared_ptr<Model> before = pretrained.empty() ? nullptr : load_model(pretrained);
    plan = plan_pruning(model, before.get(), entry.prune->criterion,
                        KeepSpec::from_value(entry.prune->keep), seed);
    apply_plan(model, *plan);
  }
  if (entry.new_head) model.reset_head(classes);
  return plan;
}

}  // namespace moesaic
