// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "moesaic/ops/activation.h"
#include "moesaic/ops/routing.h"

namespace moesaic {

/// Filters of the experts, stacked; d is the width of a patch, J the filters of an expert.
struct FilterWeights {
  at::Tensor w;  ///< [K, d, J]
  at::Tensor b;  ///< [K, J]
};

/// Two-layer convolutional networks as experts (clusters paper, eq. 3.1, with a bias and for
/// several outputs): row r of expert e, which is the input x[t] of token t, gives
///
///     y[r, c] = sum over patches p, filters j of output c of act(<w[e, :, j], x[t, p]> + b[e, j])
///
/// The first J / C filters are of output 0, the next of output 1, and so on.
///
/// x_TPd: [T, P, d] float32 or float64 (bfloat16 too, by way of grouped_mlp); of `routing` offsets
/// and tokens are looked at. Returns [A, C]; rows past the last offset are zero. For the backward
/// pass the first two million of the A P J numbers that the activation sees are kept, the others
/// computed again; without an activation the sums of the patches, A d numbers. Differentiable in
/// x, w and b; an expert without rows gets exactly zero gradients. Throws Error where C does not
/// divide J or shapes, dtypes or devices differ.
at::Tensor filter_experts(const at::Tensor& x_TPd, const Routing& routing,
                          const FilterWeights& weights, int64_t outputs, Activation activation);

}  // namespace moesaic
