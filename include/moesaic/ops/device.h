// SPDX-License-Identifier: Apache-2.0
// Devices that the operators of this build support.
#pragma once

namespace moesaic {

/// Returns whether the operators have CUDA kernels. torch::cuda::is_available() says whether there
/// is a GPU.
bool has_cuda_operators();

}  // namespace moesaic
