// SPDX-License-Identifier: Apache-2.0
// Losses of gated mixtures y = sum_i z_i g(<a_i, x>) + noise, P[z_i = 1 | x] = softmax_i(<w_i, x>),
// w_k = 0 ("Learning in Gated Neural Networks", eq. 1), as scalars that autograd differentiates;
// their expectation-maximisation, and the regressors that follow from those of L4.
//
// Inputs x [B, d], outputs y [B], regressors a [k, d], gates w [k - 1, d], or [k - 1, d + 1] with
// their biases last, all float32 or all float64.
#pragma once

#include <cmath>

#include "moesaic/papers/gated.h"

namespace moesaic {

// Link functions, of one number and of tensors.

/// Throws Error (usage) naming the nearest link for an unknown name.
Link link_from_name(std::string_view name);

/// Returns g(z).
template <class Scalar>
Scalar link_at(Link link, Scalar z) {
  constexpr Scalar kLeak = Scalar(0.01);
  const Scalar zero = 0, one = 1;
  if (link == Link::identity) return z;
  if (link == Link::relu) return z > zero ? z : zero;
  if (link == Link::leaky_relu) return z > zero ? z : kLeak * z;
  if (link == Link::step) return z > zero ? one : zero;
  if (link == Link::tanh) return std::tanh(z);
  if (link == Link::sigmoid) return one / (one + std::exp(-z));
  return (z > zero ? z : zero) + std::log1p(std::exp(-std::abs(z)));  // softplus
}

/// Returns g of every number, differentiable.
at::Tensor apply_link(const at::Tensor& z, Link link);

// The polynomials of outputs in the loss L4 (eq. 6).

/// Q4(y) = y^4 + alpha y^3 + beta y^2 + gamma y + e4 and Q2(y) = y^2 + delta y + e2. The constants
/// e4 and e2 give both mean 0, which changes no expectation of the loss and takes variance away.
struct OutputTransforms {
  double alpha = 0.0, beta = 0.0, gamma = 0.0, e4 = 0.0, delta = 0.0, e2 = 0.0;
  double c4 = 0.0;  ///< c_g = E[S4(Z) (Z^4 - 6 Z^2 + 3)], S4(Z) = E[Q4(y) | Z].
  double c2 = 0.0;  ///< c'_g = E[S2(Z) (Z^2 - 1)], S2(Z) = E[Q2(y) | Z].
};

/// Solves Conditions 1 and 2 (appendix B) for y | Z ~ N(g(Z), noise^2), Z ~ N(0, 1): S4 is
/// orthogonal to the Hermite polynomials of degrees 1 to 3, S2 to that of degree 1. The moments
/// are integrals over each half of the line, since links have kinks at 0. Throws Error (usage) with
/// the reason where the link has no such polynomials.
OutputTransforms output_transforms(Link link, double noise);

// Losses.

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

// Expectation-maximisation.

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
