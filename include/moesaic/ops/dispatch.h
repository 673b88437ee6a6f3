// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "moesaic/ops/routing.h"

namespace moesaic {

/// Copies tokens into the rows of their experts: rows[r] = x[token[r]].
///
/// x_Td: [T, d] bfloat16, float16, float32 or float64. Returns [A, d]; rows past offsets[K]
/// are zero. Differentiable: the gradient of a token is the sum over its rows, in the order of its
/// choices, so results do not depend on threads.
at::Tensor dispatch(const at::Tensor& x_Td, const Routing& routing);

}  // namespace moesaic
