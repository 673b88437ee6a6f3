// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "moesaic/ops/activation.h"
#include "moesaic/ops/routing.h"

namespace moesaic {

/// Stacked filters of the experts; d is the width of a patch, J the number of filters of an expert.
struct FilterWeights {
  at::Tensor w;  ///< [K, d, J]
  at::Tensor b;  ///< [K, J]
};

/// Applies two-layer convolutional networks as experts (clusters paper, eq. 3.1, with biases and
/// several outputs): row r of expert e, which is the input x[t] of token t, gives
///
///     y[r, c] = sum over patches p, filters j of output c of act(<w[e, :, j], x[t, p]> + b[e, j])
///
/// The first J / C filters belong to output 0, the next J / C to output 1, and so on.
///
/// x_TPd: [T, P, d] of any floating type; only the offsets and tokens of `routing` are read.
/// Returns [A, C]; rows past the last offset are zero. For the backward pass the A P J inputs of
/// the activation are kept; without one nothing of that size. Differentiable in x, w and b; an
/// expert without rows gets exactly zero gradients. Throws Error where C does not divide J or
/// shapes, dtypes or devices differ.
at::Tensor filter_experts(const at::Tensor& x_TPd, const Routing& routing,
                          const FilterWeights& weights, int64_t outputs, Activation activation);

}  // namespace moesaic
