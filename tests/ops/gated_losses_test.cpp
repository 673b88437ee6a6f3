// SPDX-License-Identifier: Apache-2.0
#include "moesaic/ops/gated_losses.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <functional>
#include <numbers>

#include "moesaic/base/error.h"
#include "support/tensors.h"

namespace moesaic {
namespace {

using at::Tensor;
using testing::expect_close;
using testing::randn;

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

/// Central differences of `loss` in every number of `leaf`.
Tensor differences(const std::function<double()>& loss, const Tensor& leaf) {
  constexpr double kStep = 1e-5;
  Tensor out = torch::empty_like(leaf);
  for (int64_t i = 0; i < leaf.numel(); ++i) {
    Tensor number = leaf.view(-1)[i];
    const double before = number.item<double>();
    number.fill_(before + kStep);
    const double above = loss();
    number.fill_(before - kStep);
    out.view(-1)[i] = (above - loss()) / (2.0 * kStep);
    number.fill_(before);
  }
  return out;
}

TEST(L4Loss, EqualsPlainLoopsAndFiniteDifferences) {
  for (const Link link : {Link::identity, Link::relu}) {
    for (const int64_t k : {1, 2, 4}) {
      const auto t = output_transforms(link, 0.2);
      const Tensor x = randn({300, 5}, 1), y = randn({300}, 2), a = randn({k, 5}, 3);
      const GatedLoss found = l4_loss(x, y, a, t, kWeights);
      const double wanted = plain_l4(x, y, a, t);
      EXPECT_NEAR(found.loss, wanted, 1e-10 * std::abs(wanted));
      const Tensor slopes = differences([&] { return l4_loss(x, y, a, t, kWeights).loss; }, a);
      expect_close(found.regressors, slopes, 1e-6);
      EXPECT_FALSE(found.gates.defined());
    }
  }
}

TEST(L4Loss, GradientEqualsAutogradsOfTheFormula) {
  const auto t = output_transforms(Link::sigmoid, 0.1);
  const Tensor x = randn({257, 4}, 1), y = randn({257}, 2);
  const Tensor a = randn({3, 4}, 3).set_requires_grad(true);
  const Tensor q4 =
      (y.pow(4) + t.alpha * y.pow(3) + t.beta * y.square() + t.gamma * y + t.e4) / t.c4;
  const Tensor q2 = (y.square() + t.delta * y + t.e2) / t.c2;
  const Tensor p = x.mm(a.t()), m = a.mm(a.t());
  Tensor loss = kWeights.delta / 2.0 * a.square().sum();
  for (int64_t i = 0; i < 3; ++i) {
    const Tensor u = p.select(1, i), n = m[i][i];
    loss = loss - kWeights.mu * (q4 * (u.pow(4) - 6 * n * u * u + 3 * n * n)).mean() +
           kWeights.lambda * ((q2 * (u * u - n)).mean() - 1).square();
    for (int64_t j = 0; j < 3; ++j) {
      if (j == i) continue;
      const Tensor v = p.select(1, j), l = m[j][j], c = m[i][j];
      loss =
          loss +
          (q4 * (u * u * v * v - n * v * v - 4 * u * v * c - l * u * u + n * l + 2 * c * c)).mean();
    }
  }
  loss.backward();
  const GatedLoss found = l4_loss(x, y, a.detach(), t, kWeights);
  EXPECT_NEAR(found.loss, loss.item<double>(), 1e-10 * std::abs(found.loss));
  expect_close(found.regressors, a.grad(), 1e-10);
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
  const GatedLoss found = l4_loss(x, y, a, output_transforms(Link::identity, 0.0), kWeights);
  EXPECT_NEAR(found.loss, wanted.item<double>(), 0.05);
}

/// E[y | x] and log p(y | x) by ATen.
struct Mixture {
  Tensor x, y, a, w;
  Link link;

  Tensor log_gates() const { return at::constant_pad_nd(x.mm(w.t()), {0, 1}).log_softmax(1); }
  Tensor outputs() const { return apply_link(x.mm(a.t()), link); }
  Tensor squared() const { return ((log_gates().exp() * outputs()).sum(1) - y).square().mean(); }
  Tensor log_loss(double noise) const {
    const Tensor off = (y.unsqueeze(1) - outputs()).square() / (2 * noise * noise);
    return -(log_gates() - off).logsumexp(1).mean() +
           std::log(noise * std::sqrt(2 * std::numbers::pi));
  }
};

Mixture some_mixture(Link link, int64_t k) {
  return {randn({700, 5}, 1), randn({700}, 2), randn({k, 5}, 3).set_requires_grad(true),
          randn({k - 1, 5}, 4).set_requires_grad(true), link};
}

TEST(MixtureLosses, EqualAutogradsForEveryLink) {
  constexpr double kNoise = 0.3;
  for (size_t number = 0; number < kLinkNames.size(); ++number) {
    for (const int64_t k : {2, 4}) {
      SCOPED_TRACE(kLinkNames[number]);
      const Mixture of = some_mixture(static_cast<Link>(number), k);
      of.squared().backward();
      const GatedLoss squared = squared_loss(of.x, of.y, of.a.detach(), of.w.detach(), of.link);
      EXPECT_NEAR(squared.loss, of.squared().item<double>(), 1e-12);
      if (of.link != Link::step) expect_close(squared.regressors, of.a.grad(), 1e-12);
      expect_close(squared.gates, of.w.grad(), 1e-12);
      of.w.mutable_grad() = Tensor();
      of.log_loss(kNoise).backward();
      const GatedLoss log = log_loss(of.x, of.y, of.a.detach(), of.w.detach(), of.link, kNoise);
      EXPECT_NEAR(log.loss, of.log_loss(kNoise).item<double>(), 1e-12);
      expect_close(log.gates, of.w.grad(), 1e-12);
      EXPECT_FALSE(log.regressors.defined());
    }
  }
}

TEST(MixtureLosses, InFloat32AreThoseOfFloat64) {
  for (const Link link : {Link::identity, Link::relu, Link::tanh}) {
    const Mixture of = some_mixture(link, 3);
    const Tensor x = of.x.to(torch::kFloat), y = of.y.to(torch::kFloat);
    const Tensor a = of.a.detach(), w = of.w.detach();
    const Tensor a32 = a.to(torch::kFloat), w32 = w.to(torch::kFloat);
    const auto same = [](const GatedLoss& found, const GatedLoss& wanted) {
      EXPECT_NEAR(found.loss, wanted.loss, 1e-4 * std::abs(wanted.loss));
      if (wanted.regressors.defined()) {
        expect_close(found.regressors.to(torch::kDouble), wanted.regressors, 1e-4);
      }
      if (wanted.gates.defined()) expect_close(found.gates.to(torch::kDouble), wanted.gates, 1e-4);
    };
    same(squared_loss(x, y, a32, w32, link), squared_loss(of.x, of.y, a, w, link));
    same(log_loss(x, y, a32, w32, link, 0.3), log_loss(of.x, of.y, a, w, link, 0.3));
    const auto t = output_transforms(link, 0.3);
    same(l4_loss(x, y, a32, t, kWeights), l4_loss(of.x, of.y, a, t, kWeights));
  }
}

TEST(MixtureLosses, StandFarOutputsAndLongGates) {
  const Tensor x = randn({50, 3}, 1, torch::kFloat) * 100, y = randn({50}, 2, torch::kFloat) * 1e4;
  const Tensor a = randn({2, 3}, 3, torch::kFloat), w = randn({1, 3}, 4, torch::kFloat) * 100;
  const GatedLoss found = log_loss(x, y, a, w, Link::identity, 0.05);
  EXPECT_TRUE(std::isfinite(found.loss));
  EXPECT_TRUE(found.gates.isfinite().all().item<bool>());
}

TEST(GatedLosses, RefuseWhatDoesNotFit) {
  const Tensor x = randn({8, 3}, 1), y = randn({8}, 2), a = randn({2, 3}, 3), w = randn({1, 3}, 4);
  const auto t = output_transforms(Link::identity, 0.1);
  EXPECT_NO_THROW(l4_loss(x, y, a, t, {}));
  EXPECT_THROW(l4_loss(x, randn({7}, 2), a, t, {}), Error);
  EXPECT_THROW(l4_loss(x, y, randn({2, 4}, 3), t, {}), Error);
  EXPECT_THROW(l4_loss(x.to(torch::kFloat), y, a, t, {}), Error);
  EXPECT_THROW(l4_loss(x.slice(0, 0, 0), y.slice(0, 0, 0), a, t, {}), Error);
  EXPECT_THROW(log_loss(x, y, a, randn({2, 3}, 4), Link::identity, 0.1), Error);
  EXPECT_THROW(log_loss(x, y, a, w, Link::identity, 0.0), Error);
  EXPECT_THROW(squared_loss(x, y, a, w.to(torch::kFloat), Link::identity), Error);
}

}  // namespace
}  // namespace moesaic
