// SPDX-License-Identifier: Apache-2.0
#include "moesaic/ops/gated_em.h"

#include <torch/torch.h>

#include <cmath>
#include <vector>

#include "moesaic/ops/gated_losses.h"

namespace moesaic {
namespace {

using at::Tensor;

/// Returns g'(z).
Tensor slope_of(const Tensor& z, Link link) {
  const at::AutoGradMode differentiable(true);
  const Tensor leaf = z.detach().requires_grad_();
  return torch::autograd::grad({apply_link(leaf, link).sum()}, {leaf})[0];
}

/// Returns a step of Gauss and Newton for one expert from the samples' weights.
Tensor least_squares(const Tensor& x, const Tensor& y, const Tensor& a, const Tensor& weight,
                     Link link) {
  constexpr double kRidge = 1e-9;  // Keeps experts without samples where they are.
  const Tensor z = x.mv(a), slope = slope_of(z, link);
  const Tensor jacobian = x * slope.unsqueeze(1), weighted = jacobian * weight.unsqueeze(1);
  const Tensor left = weighted.t().mm(jacobian) +
                      kRidge * static_cast<double>(x.size(0)) * at::eye(x.size(1), x.options());
  return a + at::linalg_solve(left, weighted.t().mv(y - apply_link(z, link)));
}

/// Signed scales of a regressor, 1 and -1 first.
std::vector<double> scales() {
  std::vector<double> all;
  for (const int step : {0, 1, -1, 2, -2, 3, -3, 4, -4}) {
    for (const double sign : {1.0, -1.0}) all.push_back(sign * std::exp2(step / 4.0));
  }
  return all;
}

}  // namespace

Tensor gated_posterior(const Tensor& x, const Tensor& y, const Tensor& a, const Tensor& w,
                       Link link, double noise) {
  return (log_gates(x, w) + log_density(y.unsqueeze(1), x.mm(a.t()), link, noise)).softmax(1);
}

GatedEmStep gated_em_step(const Tensor& x, const Tensor& y, const Tensor& a, const Tensor& w,
                          Link link, double noise, const GatedEmOptions& options) {
  const Tensor posterior = gated_posterior(x, y, a, w, link, noise);
  GatedEmStep out{a.clone(), w.clone(), log_loss(x, y, a, w, link, noise).item<double>()};
  for (int64_t i = 0; i < a.size(0); ++i) {
    out.a_kd.select(0, i).copy_(least_squares(x, y, a[i], posterior.select(1, i), link));
  }
  for (int64_t step = 0; step < options.gate_steps; ++step) {
    const Tensor off = posterior - log_gates(x, out.w_kd).exp();
    const Tensor ascent = off.narrow(1, 0, w.size(0)).t().mm(x);
    out.w_kd.add_(ascent, options.lr / static_cast<double>(x.size(0)));
  }
  return out;
}

Tensor resolve_regressors(const Tensor& x, const Tensor& y, const Tensor& a, const Tensor& w,
                          Link link, double noise) {
  const Tensor dual = at::linalg_pinv(a).t();
  const Tensor unit = dual / dual.norm(2, {1}, true);
  const Tensor z = x.mm(unit.t()), gates = log_gates(x, w), column = y.unsqueeze(1);
  const int64_t k = a.size(0);
  Tensor chosen = at::ones({k}, x.options());
  const auto likelihood = [&](const Tensor& scale) {
    return (gates + log_density(column, z * scale, link, noise)).logsumexp(1).sum().item<double>();
  };
  constexpr int kMaxSweeps = 20;
  double best = likelihood(chosen);
  for (int sweep = 0; sweep < kMaxSweeps; ++sweep) {
    const double before = best;
    for (int64_t i = 0; i < k; ++i) {
      for (const double scale : scales()) {
        Tensor candidate = chosen.clone();
        candidate[i] = scale;
        const double value = likelihood(candidate);
        if (!(value > best)) continue;
        best = value;
        chosen = candidate;
      }
    }
    if (best == before) break;
  }
  return unit * chosen.unsqueeze(1);
}

}  // namespace moesaic
