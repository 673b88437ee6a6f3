// SPDX-License-Identifier: Apache-2.0
// The experts' last bias added within combine: on a device this saves a pass over all rows.
#pragma once

#include "moesaic/ops/grouped_mlp.h"
#include "moesaic/ops/routing.h"

namespace moesaic::ops {

/// Returns grouped_mlp() [A, d] without b2. The gradient of b2 is nonetheless this operator's: the
/// sum over its expert's rows of what arrives, since combine_with_bias() hands it none.
at::Tensor grouped_mlp_before_bias(const at::Tensor& rows, const at::Tensor& offsets,
                                   const ExpertWeights& weights, Activation activation);

/// Returns combine() [T, d] of rows + b2 of their experts. rows: [A, d], b2: [K, d] of their dtype.
/// Throws Error where b2 requires a gradient, which is not this operator's.
at::Tensor combine_with_bias(const at::Tensor& rows, const at::Tensor& b2, const Routing& routing);

}  // namespace moesaic::ops
