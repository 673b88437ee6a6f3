// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/modules/linear.h>

namespace moesaic::nn {

/// A linear layer with Xavier-uniform weights and zero biases from the given generator.
torch::nn::Linear make_linear(int64_t in, int64_t out, at::Generator generator);

}  // namespace moesaic::nn
