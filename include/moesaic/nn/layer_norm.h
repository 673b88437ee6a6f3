// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/modules/normalization.h>

namespace moesaic::nn {

inline constexpr double kLayerNormEpsilon = 1e-6;  ///< Epsilon of the V-MoE reference.

/// Makes a LayerNorm over the last dimension, of size `width`.
torch::nn::LayerNorm make_layer_norm(int64_t width);

}  // namespace moesaic::nn
