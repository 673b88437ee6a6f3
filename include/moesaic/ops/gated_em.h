// SPDX-License-Identifier: Apache-2.0
// Expectation-maximisation of gated mixtures, and the regressors that follow from those of L4.
#pragma once

#include <ATen/core/Tensor.h>

#include "moesaic/ops/link.h"

namespace moesaic {

struct GatedEmOptions {
  int64_t gate_steps = 5;
  double lr = 0.5;
};

struct GatedEmStep {
  at::Tensor a_kd, w_kd;
  double loss = 0.0;  ///< Mean negative log-likelihood before the step.
};

/// Returns P[z | x, y] [B, k] (after eq. 14), float64. All tensors are float64: x [B, d], y [B],
/// a [k, d], w [k - 1, d].
at::Tensor gated_posterior(const at::Tensor& x_Bd, const at::Tensor& y_B, const at::Tensor& a_kd,
                           const at::Tensor& w_kd, Link link, double noise);

/// Makes an iteration of EM: posteriors, then weighted least squares for the regressors (a step of
/// Gauss and Newton, which is exact for the identity), then gradient steps on the gates'
/// weighted log-likelihood.
GatedEmStep gated_em_step(const at::Tensor& x_Bd, const at::Tensor& y_B, const at::Tensor& a_kd,
                          const at::Tensor& w_kd, Link link, double noise,
                          const GatedEmOptions& options);

/// Returns the regressors that minimisers of L4 stand for: rows of (A^+)^T, since those are dual to
/// the true ones (theorem 1), normalised, with the signs and scales that make the samples likeliest
/// (remark 1), given the gates. Scales are within a factor of 2 of 1, in steps of 2^(1/4). Where
/// rows of A depend on each other the pseudo-inverse stands for the inverse.
at::Tensor resolve_regressors(const at::Tensor& x_Bd, const at::Tensor& y_B, const at::Tensor& a_kd,
                              const at::Tensor& w_kd, Link link, double noise);

}  // namespace moesaic
