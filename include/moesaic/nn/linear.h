// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/modules/linear.h>

namespace moesaic::nn {

/// Makes a linear layer with zero biases and Xavier-uniform weights drawn from `generator`. `parts`
/// layers whose weights are stacked are each drawn with the fans of its own.
torch::nn::Linear make_linear(int64_t in, int64_t out, const at::Generator& generator,
                              int64_t parts = 1);

}  // namespace moesaic::nn
