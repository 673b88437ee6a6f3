// SPDX-License-Identifier: Apache-2.0
// Where this build's operators run.
#pragma once

namespace moesaic {

/// Have the operators kernels for a GPU? That one is there is torch::cuda::is_available()'s to say.
bool has_cuda_operators();

}  // namespace moesaic
