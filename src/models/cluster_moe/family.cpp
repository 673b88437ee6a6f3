// SPDX-License-Identifier: Apache-2.0
// What the rest of the library asks of the family.
#include <torch/torch.h>

#include "moesaic/models/cluster_moe/cluster_moe.h"

namespace moesaic {

SettingPaths ClusterMoE::setting_paths() const {
  return {.router_noise = "router.noise_scale",
          .classes = "classes",
          .image_size = "patches",
          .kept_experts = "kept_experts"};
}

std::map<std::string, at::Tensor> ClusterMoE::weight_directions() const {
  std::map<std::string, at::Tensor> directions = {{"expert", experts->w.detach().transpose(1, 2)}};
  if (!router.is_empty()) directions["router"] = router->weight.detach().unsqueeze(1);
  return directions;
}

}  // namespace moesaic
