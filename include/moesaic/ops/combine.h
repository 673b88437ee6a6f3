// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "moesaic/ops/routing.h"

namespace moesaic {

/// Combines the experts' outputs for their tokens: y[t] = sum over rows r of t of gate[r] * rows[r]
/// (pruning paper, eq. 1). A token without rows gives exactly 0.
///
/// rows_Ad: [A, d] of the gates' dtype, or of two bytes beside float32 gates. Returns [T, d].
/// Differentiable in rows and gates.
at::Tensor combine(const at::Tensor& rows_Ad, const Routing& routing);

}  // namespace moesaic
