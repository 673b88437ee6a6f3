// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/modules/normalization.h>

namespace moesaic::nn {

inline constexpr double kLayerNormEpsilon = 1e-6;  ///< the reference's

/// LayerNorm over the last dimension.
torch::nn::LayerNorm make_layer_norm(int64_t width);

}  // namespace moesaic::nn
