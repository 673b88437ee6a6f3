// SPDX-License-Identifier: Apache-2.0
#include "moesaic/nn/layer_norm.h"

namespace moesaic::nn {

torch::nn::LayerNorm make_layer_norm(int64_t width) {
  return torch::nn::LayerNorm(torch::nn::LayerNormOptions({width}).eps(kLayerNormEpsilon));
}

}  // namespace moesaic::nn
