// SPDX-License-Identifier: Apache-2.0
#include "papers/gated/losses.h"

#include <cmath>
#include <numbers>
#include <utility>
#include <vector>

#include "moesaic/base/error.h"
#include "support/tensors.h"

namespace moesaic {
namespace {

using at::Tensor;

constexpr L4Weights kWeights{.lambda = 3.0, .mu = 0.7, .delta = 0.4};

/// Eq. 7 by plain loops over samples and pairs, float64.
double plain_l4(const Tensor& x, const Tensor& y, const Tensor& a, const OutputTransforms& t) {
  const int64_t samples = x.size(0), k = a.size(0);
  const Tensor p = x.mm(a.t()), m = a.mm(a.t());
  const auto at = [](const Tensor& of, int64_t i, int64_t j) { return of[i][j].item<double>(); };
  double loss = kWeights.delta / 2.0 * a.square().sum().item<double>();
  for (int64_t i = 0; i < k; ++i) {
    double t2 = 0.0, t3 = 0.0, t1 = 0.0;
    for (int64_t s = 0; s < samples; ++s) {
      const double v = y[s].item<double>();
      const double q4 =
          std::pow(v, 4) + t.alpha * std::pow(v, 3) + t.beta * v * v + t.gamma * v + t.e4;
      const double q2 = v * v + t.delta * v + t.e2;
      const double u = at(p, s, i), n = at(m, i, i);
      t2 += q4 * (std::pow(u, 4) - 6.0 * n * u * u + 3.0 * n * n) / t.c4;
      t3 += q2 * (u * u - n) / t.c2;
      for (int64_t j = 0; j < k; ++j) {
        if (j == i) continue;
        const double w = at(p, s, j), l = at(m, j, j), c = at(m, i, j);
        t1 += q4 * (u * u * w * w - n * w * w - 4.0 * u * w * c - l * u * u + n * l + 2.0 * c * c) /
              t.c4;
      }
    }
    const auto count = static_cast<double>(samples);
    loss += t1 / count - kWeights.mu * t2 / count +
            kWeights.lambda * (t3 / count - 1.0) * (t3 / count - 1.0);
  }
  return loss;
}

Tensor leaf(const Tensor& tensor) {
  return tensor.detach().clone().set_requires_grad(true);
}

TEST(L4Loss, EqualsPlainLoopsAndFiniteDifferences) {
  for (const Link link : {Link::identity, Link::relu}) {
    for (const int64_t k : {1, 2, 4}) {
      const auto t = output_transforms(link, 0.2);
      const Tensor x = randn({300, 5}, 1), y = randn({300}, 2), a = randn({k, 5}, 3);
      const double wanted = plain_l4(x, y, a, t);
      EXPECT_NEAR(l4_loss(x, y, a, t, kWeights).item<double>(), wanted, 1e-10 * std::abs(wanted));
      expect_gradients([&](const auto& in) { return l4_loss(x, y, in[0], t, kWeights); },
                       {leaf(a)});
    }
  }
}

TEST(L4Loss, IsTheoremFivesPolynomialInTheMean) {
  // Eq. 8 for two experts of probability 1/2, within the error of a million samples.
  torch::manual_seed(5);
  const int64_t samples = 1000000;
  const Tensor truth = torch::eye(4, torch::kDouble).slice(0, 0, 2);
  const Tensor x = torch::randn({samples, 4}, torch::kDouble);
  const Tensor z = torch::rand({samples}, torch::kDouble).lt(0.5);
  const Tensor p = x.mm(truth.t());
  const Tensor y = at::where(z, p.select(1, 0), p.select(1, 1));
  const Tensor a = torch::tensor({{0.9, 0.3, 0.2, -0.1}, {-0.2, 1.1, 0.1, 0.3}}, torch::kDouble);
  const Tensor c2 = truth.mm(a.t()).square();  // <a*_m, a_i>^2, [m, i]
  const Tensor cross = (c2.sum(1).square() - c2.square().sum(1)).sum() * 0.5;
  const Tensor wanted = cross - kWeights.mu * 0.5 * c2.square().sum() +
                        kWeights.lambda * (0.5 * c2.sum(0) - 1).square().sum() +
                        kWeights.delta / 2 * a.square().sum();
  const Tensor found = l4_loss(x, y, a, output_transforms(Link::identity, 0.0), kWeights);
  EXPECT_NEAR(found.item<double>(), wanted.item<double>(), 0.05);
}

struct Mixture {
  Tensor x, y, a, w;
  Link link;

  /// Means over samples of (E[y | x] - y)^2 and of -log p(y | x), by plain loops in float64.
  std::pair<double, double> plain_losses(double noise) const {
    const auto dot = [](const Tensor& u, const Tensor& v) { return u.dot(v).item<double>(); };
    const int64_t k = a.size(0);
    double squared = 0.0, log = 0.0;
    for (int64_t s = 0; s < x.size(0); ++s) {
      const double output = y[s].item<double>();
      double gates = 0.0, mean = 0.0, density = 0.0;
      for (int64_t i = 0; i < k; ++i) {
        const double gate = i + 1 < k ? std::exp(dot(x[s], w[i])) : 1.0, z = dot(x[s], a[i]);
        const double g = link_at(link, z);
        gates += gate;
        mean += gate * g;
        density += gate * std::exp(-(output - g) * (output - g) / (2 * noise * noise));
      }
      squared += (mean / gates - output) * (mean / gates - output);
      log -= std::log(density / gates / (noise * std::sqrt(2 * std::numbers::pi)));
    }
    const auto count = static_cast<double>(x.size(0));
    return {squared / count, log / count};
  }
};

Mixture some_mixture(Link link, int64_t k) {
  return {randn({40, 5}, 1), randn({40}, 2), randn({k, 5}, 3).set_requires_grad(true),
          randn({k - 1, 5}, 4).set_requires_grad(true), link};
}

TEST(MixtureLosses, EqualPlainLoopsAndFiniteDifferencesForEveryLink) {
  constexpr double kNoise = 0.8;
  for (size_t number = 0; number < kLinkNames.size(); ++number) {
    for (const int64_t k : {1, 2, 4}) {
      SCOPED_TRACE(kLinkNames[number]);
      const Mixture of = some_mixture(static_cast<Link>(number), k);
      const auto [squared, log] = of.plain_losses(kNoise);
      const auto squared_of = [&](const auto& in) {
        return squared_loss(of.x, of.y, in[0], in[1], of.link);
      };
      const auto log_of = [&](const auto& in) {
        return log_loss(of.x, of.y, in[0], in[1], of.link, kNoise);
      };
      EXPECT_NEAR(squared_of(std::vector{of.a, of.w}).template item<double>(), squared, 1e-12);
      EXPECT_NEAR(log_of(std::vector{of.a, of.w}).template item<double>(), log, 1e-12);
      expect_gradients(squared_of, {leaf(of.a), leaf(of.w)});
      expect_gradients(log_of, {leaf(of.a), leaf(of.w)});
    }
  }
}

TEST(MixtureLosses, BiasesOfGatesAreWeightsOfOneMoreInput) {
  const Tensor x = randn({40, 3}, 1), y = randn({40}, 2), a = randn({3, 3}, 3),
               w = randn({2, 4}, 4);
  const Tensor one = torch::ones({40, 1}, torch::kDouble);
  const Tensor wide_x = at::cat({x, one}, 1);
  const Tensor wide_a = at::cat({a, torch::zeros({3, 1}, torch::kDouble)}, 1);
  expect_close(log_loss(x, y, a, w, Link::tanh, 0.3),
               log_loss(wide_x, y, wide_a, w, Link::tanh, 0.3), 1e-13);
  expect_close(squared_loss(x, y, a, w, Link::tanh), squared_loss(wide_x, y, wide_a, w, Link::tanh),
               1e-13);
  const GatedEmStep step = gated_em_step(x, y, a, w, Link::identity, 0.3, {});
  const Tensor off = gated_posterior(x, y, a, w, Link::identity, 0.3) -
                     at::constant_pad_nd(wide_x.mm(w.t()), {0, 1}).softmax(1);
  const GatedEmStep once =
      gated_em_step(x, y, a, w, Link::identity, 0.3, {.gate_steps = 1, .lr = 2});
  expect_close(once.w_kd, w + 2.0 / 40.0 * off.narrow(1, 0, 2).t().mm(wide_x), 1e-13);
  EXPECT_EQ(step.w_kd.sizes(), w.sizes());
}

TEST(GatedLosses, InFloat32AreThoseOfFloat64) {
  for (const Link link : {Link::identity, Link::relu, Link::tanh}) {
    const Mixture of = some_mixture(link, 3);
    const auto t = output_transforms(link, 0.3);
    const auto gradients = [&](at::ScalarType type) {
      const Tensor x = of.x.to(type), y = of.y.to(type), a = of.a.to(type), w = of.w.to(type);
      std::vector<Tensor> all;
      for (const Tensor& loss : {squared_loss(x, y, a, w, link), log_loss(x, y, a, w, link, 0.3),
                                 l4_loss(x, y, a, t, kWeights) + 0.0 * w.sum()}) {
        for (const Tensor& gradient : torch::autograd::grad({loss}, {of.a, of.w}, {}, true)) {
          all.push_back(gradient);
        }
      }
      return all;
    };
    const auto found = gradients(torch::kFloat), wanted = gradients(torch::kDouble);
    for (size_t i = 0; i < found.size(); ++i) expect_close(found[i], wanted[i], 1e-4);
  }
}

TEST(MixtureLosses, StandFarOutputsAndLongGates) {
  const Tensor x = randn({50, 3}, 1, torch::kFloat) * 100, y = randn({50}, 2, torch::kFloat) * 1e4;
  const Tensor a = randn({2, 3}, 3, torch::kFloat), w = randn({1, 3}, 4, torch::kFloat) * 100;
  const Tensor gates = leaf(w);
  const Tensor found = log_loss(x, y, a, gates, Link::identity, 0.05);
  found.backward();
  EXPECT_TRUE(std::isfinite(found.item<float>()));
  EXPECT_TRUE(gates.grad().isfinite().all().item<bool>());
}

}  // namespace
}  // namespace moesaic
