// SPDX-License-Identifier: Apache-2.0
// Tensor maps: descriptions of matrices for the tensor memory accelerator (TMA) of a GPU. The
// driver makes them; it is asked for the function when it is needed, so that nothing links against
// it.
#pragma once

#include <cuda.h>

#include "../kernels/tensor_core.h"

namespace moesaic::ops::kernels::hopper {

/// Whether there is a driver that can describe matrices.
bool has_tensor_maps();

/// Describes bfloat16 matrices, laid out in shared memory with the swizzle of 128 bytes; what lies
/// outside of them reads as 0. False where the driver cannot.
bool encode(const BoxSource& source, CUtensorMap* map);

}  // namespace moesaic::ops::kernels::hopper
