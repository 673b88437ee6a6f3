// SPDX-License-Identifier: Apache-2.0
// Devices that the operators of this build support.
#pragma once

#include <string>

namespace moesaic {

/// Returns whether the operators have CUDA kernels. torch::cuda::is_available() says whether there
/// is a GPU.
bool has_cuda_operators();

/// Throws Error (usage) unless this build and machine can compute on "cpu" or "cuda".
void check_device(const std::string& device);

}  // namespace moesaic
