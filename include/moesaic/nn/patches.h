// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include "moesaic/config/sides.h"

namespace moesaic::nn {

/// Returns the patches of images [B, C, H, W] as rows [B, T, C h w], row by row of the grid, each
/// in the order of a kernel's numbers. The sides of a patch divide those of an image.
at::Tensor patches_of(const at::Tensor& images_BCHW, const Sides& patch);

}  // namespace moesaic::nn
