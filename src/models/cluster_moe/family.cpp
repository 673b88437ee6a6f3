// SPDX-License-Identifier: Apache-2.0
// Functions of ClusterMoE for training, pruning and probes.
#include <torch/torch.h>

#include "moesaic/models/cluster_moe/cluster_moe.h"

namespace moesaic {

SettingPaths ClusterMoE::setting_paths() const {
  const std::string router = "router.";
  return {.router_name = router + "name",
          .router_noise = router + "noise_scale",
          .router_noise_kind = router + "noise",
          .rows_per_expert = router + "num_selected_tokens",
          .capacity_factor = router + "dispatcher.capacity_factor",
          .group_size = router + "group_size",
          .classes = "classes",
          .image_size = "patches",
          .kept_experts = router + "kept_experts"};
}

std::map<std::string, at::Tensor> ClusterMoE::weight_directions() const {
  std::map<std::string, at::Tensor> directions = {{"expert", experts->w.detach().transpose(1, 2)}};
  if (!moe.is_empty()) directions["router"] = moe->router->weight.detach().unsqueeze(1);
  return directions;
}

}  // namespace moesaic
