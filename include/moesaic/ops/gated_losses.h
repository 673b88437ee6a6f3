// SPDX-License-Identifier: Apache-2.0
// Losses of gated mixtures y = sum_i z_i g(<a_i, x>) + noise, P[z_i = 1 | x] = softmax_i(<w_i, x>),
// w_k = 0 ("Learning in Gated Neural Networks", eq. 1), with gradients by formula, on the CPU.
//
// Inputs x [B, d], outputs y [B], regressors a [k, d], gates w [k - 1, d], all float32 or all
// float64. Sums run over samples in a fixed order. Throw Error for other shapes and dtypes.
#pragma once

#include <ATen/core/Tensor.h>

#include "moesaic/ops/link.h"
#include "moesaic/ops/output_transforms.h"

namespace moesaic {

/// A loss and its gradients; those of parameters that it does not move are undefined.
struct GatedLoss {
  double loss = 0.0;
  at::Tensor regressors, gates;
};

/// Weights of the terms of L4.
struct L4Weights {
  double lambda = 10.0, mu = 0.1, delta = 0.001;
};

/// L4 (eq. 7) of the batch, for the regressors: sums over i != j of Q4(y) t1(a_i, a_j, x), minus mu
/// times those of Q4(y) t2(a_i, x), plus lambda times those of (mean Q2(y) t3(a_i, x) - 1)^2, plus
/// delta / 2 |A|^2. Takes O(B k (d + k)) operations. The mean within the square is the batch's own.
GatedLoss l4_loss(const at::Tensor& x_Bd, const at::Tensor& y_B, const at::Tensor& a_kd,
                  const OutputTransforms& transforms, const L4Weights& weights);

/// L_log (eq. 9), the mean negative log-likelihood of y, for the gates (gradient eq. 14). Its
/// gradient is minus the mean of (P[z_i | x, y] - P[z_i | x]) x: a step is one of gradient EM.
GatedLoss log_loss(const at::Tensor& x_Bd, const at::Tensor& y_B, const at::Tensor& a_kd,
                   const at::Tensor& w_kd, Link link, double noise);

/// The mean of (E[y | x] - y)^2, the l2 loss of section 3.1, for both.
GatedLoss squared_loss(const at::Tensor& x_Bd, const at::Tensor& y_B, const at::Tensor& a_kd,
                       const at::Tensor& w_kd, Link link);

}  // namespace moesaic
