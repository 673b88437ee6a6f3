// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/modules/linear.h>

namespace moesaic::nn {

/// Makes a linear layer with zero biases and Xavier-uniform weights drawn from `generator`.
torch::nn::Linear make_linear(int64_t in, int64_t out, at::Generator generator);

}  // namespace moesaic::nn
