// SPDX-License-Identifier: Apache-2.0
// What the rest of the library asks of the family.
#include "moesaic/models/image_moe/image_moe.h"

namespace moesaic {

SettingPaths ImageMoE::setting_paths() const {
  return {.router_noise = "router.noise_scale",
          .classes = "classes",
          .image_size = "image_size",
          .channels = "channels",
          .kept_experts = "kept_experts"};
}

}  // namespace moesaic
