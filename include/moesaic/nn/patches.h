// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/ATen.h>

#include "moesaic/config/rules.h"

namespace moesaic::nn {

/// Returns the patches of images [B, C, H, W] as rows [B, T, C h w], row by row of the grid, each
/// in the order of a kernel's numbers. The sides of a patch divide those of an image.
inline at::Tensor patches_of(const at::Tensor& images_BCHW, const Size2d& patch) {
  const int64_t down = images_BCHW.size(2) / patch.height;
  return images_BCHW.unflatten(3, {-1, patch.width})
      .unflatten(2, {down, patch.height})
      .permute({0, 2, 4, 1, 3, 5})
      .flatten(3)
      .flatten(1, 2);
}

}  // namespace moesaic::nn
