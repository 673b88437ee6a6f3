// SPDX-License-Identifier: Apache-2.0
#include "moesaic/ops/gated_losses.h"

#include <torch/torch.h>

#include <cmath>
#include <numbers>

#include "check.h"
#include "moesaic/base/error.h"

namespace moesaic {
namespace {

using at::Tensor;

/// Throws unless these are a batch with regressors and, where they are defined, gates.
void check_gated(const char* op, const Tensor& x, const Tensor& y, const Tensor& a,
                 const Tensor& w) {
  ops::check_shape(op, "x", x, {-1, -1});
  ops::check_floating(op, "x", x);
  if (x.size(0) < 1) fail("{}: x must have a sample", op);
  ops::check_shape(op, "y", y, {x.size(0)});
  ops::check_same_dtype(op, "y", y, x);
  ops::check_shape(op, "regressors", a, {-1, x.size(1)});
  if (a.size(0) < 1) fail("{}: there must be a regressor", op);
  ops::check_same_dtype(op, "regressors", a, x);
  if (!w.defined()) return;
  ops::check_shape(op, "gates", w, {a.size(0) - 1, a.size(1)});
  ops::check_same_dtype(op, "gates", w, a);
}

}  // namespace

Tensor log_gates(const Tensor& x_Bd, const Tensor& w_kd) {
  return at::constant_pad_nd(x_Bd.mm(w_kd.t()), {0, 1}).log_softmax(1);
}

Tensor log_density(const Tensor& y_B1, const Tensor& z_Bk, Link link, double noise) {
  return (y_B1 - apply_link(z_Bk, link)).square().div(-2.0 * noise * noise);
}

// With p_i = <a_i, x>, m = A A^T and n its diagonal, but for c_g and c'_g, which are in Q4 and Q2
// here (section 3.1):
//     t1(a_i, a_j, x) = p_i^2 p_j^2 - n_i p_j^2 - n_j p_i^2 - 4 m_ij p_i p_j + n_i n_j + 2 m_ij^2
//     t2(a_i, x) = p_i^4 - 6 n_i p_i^2 + 3 n_i^2 = t1(a_i, a_i, x),  t3(a_i, x) = p_i^2 - n_i
// Means over samples, of Q4 times each power of p, come before the sums over i and j.
Tensor l4_loss(const Tensor& x, const Tensor& y, const Tensor& a, const OutputTransforms& by,
               const L4Weights& weights) {
  check_gated("l4_loss", x, y, a, {});
  const double each = 1.0 / static_cast<double>(x.size(0));
  const Tensor q4 = ((((y + by.alpha) * y + by.beta) * y + by.gamma) * y + by.e4) * (each / by.c4);
  const Tensor q2 = ((y + by.delta) * y + by.e2) * (each / by.c2);
  const Tensor p = a.mm(x.t()), p2 = p.square();  // [k, B]
  const Tensor m = a.mm(a.t()), n = m.diagonal();
  const Tensor pairs = (q4 * p).mm(p.t()), squares = (q4 * p2).mm(p2.t());
  const Tensor own = n.outer(pairs.diagonal());
  const Tensor t1 =
      squares - own - own.t() - 4.0 * m * pairs + (n.outer(n) + 2.0 * m.square()) * q4.sum();
  const Tensor t3 = p2.mv(q2) - n * q2.sum();
  return t1.sum() - (1.0 + weights.mu) * t1.trace() + weights.lambda * (t3 - 1.0).square().sum() +
         weights.delta / 2.0 * n.sum();
}

Tensor log_loss(const Tensor& x, const Tensor& y, const Tensor& a, const Tensor& w, Link link,
                double noise) {
  check_gated("log_loss", x, y, a, w);
  if (!(noise > 0.0)) fail("log_loss: noise must be positive, found {}", noise);
  const Tensor joint = log_gates(x, w) + log_density(y.unsqueeze(1), x.mm(a.t()), link, noise);
  return std::log(noise * std::sqrt(2.0 * std::numbers::pi)) - joint.logsumexp(1).mean();
}

Tensor squared_loss(const Tensor& x, const Tensor& y, const Tensor& a, const Tensor& w, Link link) {
  check_gated("squared_loss", x, y, a, w);
  return ((log_gates(x, w).exp() * apply_link(x.mm(a.t()), link)).sum(1) - y).square().mean();
}

}  // namespace moesaic
