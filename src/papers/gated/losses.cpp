// SPDX-License-Identifier: Apache-2.0
#include "losses.h"

#include <torch/torch.h>

#include <numbers>

namespace moesaic {
namespace {

/// Nodes and weights on [-1, 1], by the eigenvalues of the Jacobi matrix (Golub and Welsch, 1969).
struct GaussLegendre {
  at::Tensor nodes, weights;

  explicit GaussLegendre(int64_t count) {
    const at::Tensor n = at::arange(1, count, at::kDouble);
    const at::Tensor side = n / (4.0 * n * n - 1.0).sqrt();
    const auto [values, vectors] = at::linalg_eigh(at::diag(side, 1) + at::diag(side, -1));
    nodes = values.contiguous();
    weights = (2.0 * vectors.select(0, 0).square()).contiguous();
  }
};

/// Returns E[f(Z)], Z ~ N(0, 1), for f that is smooth on either side of 0.
double expectation(const std::function<double(double)>& f) {
  constexpr double kEnd = 14.0, kPanel = 1.0;  // Beyond the end the density is below 1e-43.
  static const GaussLegendre rule(24);
  const auto* nodes = rule.nodes.const_data_ptr<double>();
  const auto* weights = rule.weights.const_data_ptr<double>();
  double sum = 0.0;
  for (double begin = -kEnd; begin < kEnd; begin += kPanel) {
    for (int64_t i = 0; i < rule.nodes.numel(); ++i) {
      const double z = begin + kPanel * (nodes[i] + 1.0) / 2.0;
      sum += weights[i] * kPanel / 2.0 * std::exp(-z * z / 2.0) * f(z);
    }
  }
  return sum / std::sqrt(2.0 * std::numbers::pi);
}

/// Returns E[y^p | Z] for y ~ N(g, variance), p <= 4, of the fourth without its constant.
double conditional_moment(double g, double variance, int p) {
  return std::array{g, g * g + variance, g * (g * g + 3.0 * variance),
                    g * g * (g * g + 6.0 * variance)}
      .at(static_cast<size_t>(p - 1));
}

double hermite(double z, int degree) {
  return std::array{1.0, z, z * z - 1.0, z * (z * z - 3.0), z * z * (z * z - 6.0) + 3.0}.at(
      static_cast<size_t>(degree));
}

/// E[E[y^p | Z] He_n(Z)] by p and n.
class LinkMoments {
 public:
  LinkMoments(Link link, double noise) {
    for (int p = 1; p <= 4; ++p) {
      for (int n = 0; n <= 4; ++n) {
        at_[p][n] = expectation([&](double z) {
          return conditional_moment(link_at(link, z), noise * noise, p) * hermite(z, n);
        });
        // Orthogonal to the polynomials of other degrees, to which it would lend its rounding.
        if (p == 4 && n == 0) at_[p][n] += 3.0 * std::pow(noise, 4);
      }
    }
  }
  double at(int p, int n) const { return at_[p][n]; }

 private:
  double at_[5][5] = {};
};

/// Coefficients of y^3, y^2 and y, of the least norm where several satisfy Condition 1.
std::array<double, 3> solve_quartic(const LinkMoments& of, const char* link) {
  at::Tensor left = at::empty({3, 3}, at::kDouble), right = at::empty({3, 1}, at::kDouble);
  auto l = left.accessor<double, 2>(), r = right.accessor<double, 2>();
  for (int n = 1; n <= 3; ++n) {
    for (int p = 1; p <= 3; ++p) l[n - 1][3 - p] = of.at(p, n);
    r[n - 1][0] = -of.at(4, n);
  }
  const at::Tensor found = at::linalg_pinv(left, 1e-10).mm(right);
  const double off = (left.mm(found) - right).norm().item<double>();
  if (!(off <= 1e-8 * (1.0 + right.norm().item<double>()))) {
    fail_usage(
        "link '{}' is not valid for L4: no polynomial of degree 4 satisfies Condition 1: its three "
        "equations contradict",
        link);
  }
  return {found[0].item<double>(), found[1].item<double>(), found[2].item<double>()};
}

using at::Tensor;

/// Returns what gates are multiplied with: inputs, followed by 1 where there are biases.
Tensor gate_inputs(const Tensor& x_Bd, const Tensor& w_kd) {
  return w_kd.size(1) == x_Bd.size(1) ? x_Bd : at::constant_pad_nd(x_Bd, {0, 1}, 1.0);
}

/// Returns log P[z | x] [B, k].
Tensor log_gates(const Tensor& x_Bd, const Tensor& w_kd) {
  return at::constant_pad_nd(gate_inputs(x_Bd, w_kd).mm(w_kd.t()), {0, 1}).log_softmax(1);
}

/// Returns the log-density of y_B1 for each expert whose <a, x> is z [B, k], without its constant.
Tensor log_density(const Tensor& y_B1, const Tensor& z_Bk, Link link, double noise) {
  return (y_B1 - apply_link(z_Bk, link)).square().div(-2.0 * noise * noise);
}

}  // namespace

OutputTransforms output_transforms(Link link, double noise) {
  const char* name = kLinkNames.at(static_cast<size_t>(link));
  constexpr double kZero = 1e-7;  // Well above the quadrature's error.
  const LinkMoments of(link, noise);
  const auto [alpha, beta, gamma] = solve_quartic(of, name);
  OutputTransforms out{.alpha = alpha, .beta = beta, .gamma = gamma};
  const auto quartic = [&](int n) {
    return of.at(4, n) + out.alpha * of.at(3, n) + out.beta * of.at(2, n) + out.gamma * of.at(1, n);
  };
  out.c4 = quartic(4);
  out.e4 = -quartic(0);
  const double slope = of.at(1, 1);
  out.delta = std::abs(slope) > kZero ? -of.at(2, 1) / slope : 0.0;
  out.c2 = of.at(2, 2) + out.delta * of.at(1, 2);
  out.e2 = -(of.at(2, 0) + out.delta * of.at(1, 0));
  if (!(std::abs(out.c4) > kZero)) {
    fail_usage("link '{}' is not valid for L4: E[S4''''] of Condition 1 is 0", name);
  }
  if (!(std::abs(out.c2) > kZero)) {
    fail_usage("link '{}' is not valid for L4: E[S2''] of Condition 2 is 0", name);
  }
  return out;
}

// With p_i = <a_i, x>, m = A A^T and n its diagonal, but for c_g and c'_g, which are in Q4 and Q2
// here (section 3.1):
//     t1(a_i, a_j, x) = p_i^2 p_j^2 - n_i p_j^2 - n_j p_i^2 - 4 m_ij p_i p_j + n_i n_j + 2 m_ij^2
//     t2(a_i, x) = p_i^4 - 6 n_i p_i^2 + 3 n_i^2 = t1(a_i, a_i, x),  t3(a_i, x) = p_i^2 - n_i
// Means over samples, of Q4 times each power of p, come before the sums over i and j.
Tensor l4_loss(const Tensor& x, const Tensor& y, const Tensor& a, const OutputTransforms& by,
               const L4Weights& weights) {
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
  const Tensor joint = log_gates(x, w) + log_density(y.unsqueeze(1), x.mm(a.t()), link, noise);
  return std::log(noise * std::sqrt(2.0 * std::numbers::pi)) - joint.logsumexp(1).mean();
}

Tensor squared_loss(const Tensor& x, const Tensor& y, const Tensor& a, const Tensor& w, Link link) {
  return ((log_gates(x, w).exp() * apply_link(x.mm(a.t()), link)).sum(1) - y).square().mean();
}

namespace {

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
    const Tensor ascent = off.narrow(1, 0, w.size(0)).t().mm(gate_inputs(x, w));
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
