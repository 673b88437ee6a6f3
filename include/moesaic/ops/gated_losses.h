// SPDX-License-Identifier: Apache-2.0
// Losses of gated mixtures y = sum_i z_i g(<a_i, x>) + noise, P[z_i = 1 | x] = softmax_i(<w_i, x>),
// w_k = 0 ("Learning in Gated Neural Networks", eq. 1), as scalars that autograd differentiates.
//
// Inputs x [B, d], outputs y [B], regressors a [k, d], gates w [k - 1, d], all float32 or all
// float64. Throw Error for other shapes and dtypes.
#pragma once

#include <ATen/core/Tensor.h>

#include "moesaic/ops/link.h"
#include "moesaic/ops/output_transforms.h"

namespace moesaic {

/// Weights of the terms of L4.
struct L4Weights {
  double lambda = 10.0, mu = 0.1, delta = 0.001;
};

/// L4 (eq. 7) of the batch, for the regressors: sums over i != j of Q4(y) t1(a_i, a_j, x), minus mu
/// times those of Q4(y) t2(a_i, x), plus lambda times those of (mean Q2(y) t3(a_i, x) - 1)^2, plus
/// delta / 2 |A|^2. Takes O(B k (d + k)) operations. The mean within the square is the batch's own.
at::Tensor l4_loss(const at::Tensor& x_Bd, const at::Tensor& y_B, const at::Tensor& a_kd,
                   const OutputTransforms& transforms, const L4Weights& weights);

/// L_log (eq. 9), the mean negative log-likelihood of y. Its gradient for the gates (eq. 14) is
/// minus the mean of (P[z_i | x, y] - P[z_i | x]) x: a step is one of gradient EM.
at::Tensor log_loss(const at::Tensor& x_Bd, const at::Tensor& y_B, const at::Tensor& a_kd,
                    const at::Tensor& w_kd, Link link, double noise);

/// The mean of (E[y | x] - y)^2, the l2 loss of section 3.1.
at::Tensor squared_loss(const at::Tensor& x_Bd, const at::Tensor& y_B, const at::Tensor& a_kd,
                        const at::Tensor& w_kd, Link link);

/// Returns log P[z | x] [B, k].
at::Tensor log_gates(const at::Tensor& x_Bd, const at::Tensor& w_kd);

/// Returns the log-density of y_B1 for each expert whose <a, x> is z [B, k], without its constant.
at::Tensor log_density(const at::Tensor& y_B1, const at::Tensor& z_Bk, Link link, double noise);

}  // namespace moesaic
