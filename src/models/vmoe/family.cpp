// SPDX-License-Identifier: Apache-2.0
// Functions of VMoE for fine-tuning, pruning and export.
#include "moesaic/models/vmoe/vmoe.h"

namespace moesaic {

SettingPaths VMoE::setting_paths() const {
  const std::string moe = "encoder.moe.", router = moe + "router.";
  return {
      .router_name = router + "name",
      .router_noise = router + "noise_std",
      .rows_per_expert = router + "num_selected_tokens",
      .capacity_factor = router + "dispatcher.capacity_factor",
      .evaluation_capacity_factor = router + "dispatcher.evaluation_capacity_factor",
      .group_size = moe + (settings().encoder.moe.group_size > 0 ? "group_size" : "group_images"),
      .members = moe + "ensemble_size",
      .classes = "classes",
      .image_size = "image_size",
      .channels = "channels",
      .kept_experts = moe + "kept_experts"};
}

bool VMoE::may_differ_from_pretrained(const std::string& parameter) const {
  return parameter.starts_with("pre_logits") || parameter == "position_embedding" ||
         Model::may_differ_from_pretrained(parameter);
}

}  // namespace moesaic
