// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "moesaic/ops/routing.h"

namespace moesaic {

/// Copies tokens into the rows of their experts: rows[r] = x[token[r]].
///
/// x_Td: [T, d] float32 or float64, on a GPU also bfloat16. Returns [A, d]; rows past offsets[K]
/// are zero. Differentiable: the gradient of a token is the sum over its rows, in the order of its
/// choices, so results do not depend on threads.
at::Tensor dispatch(const at::Tensor& x_Td, const Routing& routing);

}  // namespace moesaic
