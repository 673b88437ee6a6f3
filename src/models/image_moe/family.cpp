// SPDX-License-Identifier: Apache-2.0
// Functions of ImageMoE for training, pruning and probes.
#include "moesaic/models/image_moe/image_moe.h"

namespace moesaic {

SettingPaths ImageMoE::setting_paths() const {
  const std::string router = "router.";
  return {.router_name = router + "name",
          .router_noise = router + "noise_scale",
          .router_noise_kind = router + "noise",
          .rows_per_expert = router + "num_selected_tokens",
          .capacity_factor = router + "dispatcher.capacity_factor",
          .group_size = router + "group_size",
          .classes = "classes",
          .image_size = "image_size",
          .channels = "channels",
          .kept_experts = router + "kept_experts"};
}

}  // namespace moesaic
