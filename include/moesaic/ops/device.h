// SPDX-License-Identifier: Apache-2.0
// Where this build's operators run.
#pragma once

namespace moesaic {

/// Whether the operators have kernels for a GPU; torch::cuda::is_available() says whether there is
/// one.
bool has_cuda_operators();

}  // namespace moesaic
