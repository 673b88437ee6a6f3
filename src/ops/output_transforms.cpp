// SPDX-License-Identifier: Apache-2.0
#include "moesaic/ops/output_transforms.h"

#include <torch/torch.h>

#include <cmath>
#include <functional>
#include <numbers>
#include <tuple>
#include <vector>

#include "moesaic/base/error.h"

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
  switch (p) {
    case 1:
      return g;
    case 2:
      return g * g + variance;
    case 3:
      return g * (g * g + 3.0 * variance);
    default:
      return g * g * (g * g + 6.0 * variance);
  }
}

double hermite(double z, int degree) {
  switch (degree) {
    case 0:
      return 1.0;
    case 1:
      return z;
    case 2:
      return z * z - 1.0;
    case 3:
      return z * (z * z - 3.0);
    default:
      return z * z * (z * z - 6.0) + 3.0;
  }
}

/// E[E[y^p | Z] He_n(Z)] by p and n.
class Moments {
 public:
  Moments(Link link, double noise) {
    for (int p = 1; p <= 4; ++p) {
      for (int n = 0; n <= 4; ++n) {
        at_[p][n] = expectation([&](double z) {
          const double g =
              with_link(link, [&](auto kind) { return link_at<decltype(kind)::value>(z); });
          return conditional_moment(g, noise * noise, p) * hermite(z, n);
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
std::array<double, 3> solve_quartic(const Moments& of) {
  at::Tensor left = at::empty({3, 3}, at::kDouble), right = at::empty({3, 1}, at::kDouble);
  auto l = left.accessor<double, 2>(), r = right.accessor<double, 2>();
  for (int n = 1; n <= 3; ++n) {
    for (int p = 1; p <= 3; ++p) l[n - 1][3 - p] = of.at(p, n);
    r[n - 1][0] = -of.at(4, n);
  }
  const at::Tensor found = at::linalg_pinv(left, 1e-10).mm(right);
  const double off = (left.mm(found) - right).norm().item<double>();
  if (!(off <= 1e-8 * (1.0 + right.norm().item<double>()))) {
    fail_usage("no polynomial of degree 4 satisfies Condition 1: its three equations contradict");
  }
  return {found[0].item<double>(), found[1].item<double>(), found[2].item<double>()};
}

}  // namespace

OutputTransforms output_transforms(Link link, double noise) {
  const char* name = kLinkNames.at(static_cast<size_t>(link));
  constexpr double kZero = 1e-7;  // Well above the quadrature's error.
  const Moments of(link, noise);
  OutputTransforms out;
  try {
    const auto [alpha, beta, gamma] = solve_quartic(of);
    out = {.alpha = alpha, .beta = beta, .gamma = gamma};
  } catch (const Error& error) {
    fail_usage("link '{}' is not valid for L4: {}", name, error.what());
  }
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

}  // namespace moesaic
