// SPDX-License-Identifier: Apache-2.0
#include "moesaic/nn/patches.h"

#include <ATen/ATen.h>

namespace moesaic::nn {

at::Tensor patches_of(const at::Tensor& images_BCHW, const Sides& patch) {
  const int64_t down = images_BCHW.size(2) / patch.height;
  return images_BCHW.unflatten(3, {-1, patch.width})
      .unflatten(2, {down, patch.height})
      .permute({0, 2, 4, 1, 3, 5})
      .flatten(3)
      .flatten(1, 2);
}

}  // namespace moesaic::nn
