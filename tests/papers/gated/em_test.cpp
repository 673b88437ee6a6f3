// SPDX-License-Identifier: Apache-2.0
#include "papers/gated/losses.h"

#include "support/tensors.h"

namespace moesaic {
namespace {

using at::Tensor;

struct Drawn {
  Tensor x, y, a, w;

  explicit Drawn(const GatedMixtureConfig& config, int64_t count = 8000) {
    const GatedTruth truth = gated_truth(config);
    const DatasetInputs examples = gated_examples(config, truth, "train", 0, count);
    x = examples.values_NCHW.flatten(1).to(torch::kDouble);
    y = examples.targets_NK.squeeze(1).to(torch::kDouble);
    a = truth.a_kd.to(torch::kDouble);
    w = truth.w_kd.to(torch::kDouble);
  }
};

TEST(GatedEm, AGradientStepOfTheLogLossIsAGradientEmStep) {
  const Tensor x = randn({500, 6}, 1), y = randn({500}, 2), a = randn({3, 6}, 3),
               w = randn({2, 6}, 4);
  constexpr double kRate = 0.3, kNoise = 0.4;
  // Q(W' | W): the expected log-likelihood of the gates under the posteriors at W, at W' = W.
  const Tensor posterior = gated_posterior(x, y, a, w, Link::relu, kNoise);
  const Tensor leaf = w.clone().set_requires_grad(true);
  (posterior * at::constant_pad_nd(x.mm(leaf.t()), {0, 1}).log_softmax(1)).sum(1).mean().backward();
  const Tensor by_em = w + kRate * leaf.grad();
  const Tensor moved = w.clone().set_requires_grad(true);
  log_loss(x, y, a, moved, Link::relu, kNoise).backward();
  const Tensor by_loss = w - kRate * moved.grad();
  expect_close(by_loss, by_em, 1e-13);
  GatedEmStep step = gated_em_step(x, y, a, w, Link::relu, kNoise, {.gate_steps = 1, .lr = kRate});
  expect_close(step.w_kd, by_em, 1e-13);
}

TEST(GatedEm, RegressorsAreWeightedLeastSquares) {
  const Tensor x = randn({200, 4}, 1), y = randn({200}, 2), a = randn({2, 4}, 3),
               w = randn({1, 4}, 4);
  const Tensor posterior = gated_posterior(x, y, a, w, Link::identity, 0.5);
  const GatedEmStep step = gated_em_step(x, y, a, w, Link::identity, 0.5, {});
  for (int64_t i = 0; i < 2; ++i) {
    const Tensor r = posterior.select(1, i).unsqueeze(1);
    const Tensor wanted = at::linalg_solve((x * r).t().mm(x), (x * r).t().mv(y));
    expect_close(step.a_kd[i], wanted, 1e-7);
  }
}

TEST(GatedEm, FindsTheMixtureFromNearby) {
  const Drawn of({.width = 6, .num_experts = 3, .link = "relu", .noise = 0.1});
  Tensor a = of.a + 0.2 * randn({3, 6}, 8), w = torch::zeros_like(of.w);
  for (int step = 0; step < 60; ++step) {
    GatedEmStep next = gated_em_step(of.x, of.y, a, w, Link::relu, 0.1, {});
    a = next.a_kd;
    w = next.w_kd;
  }
  expect_close(a, of.a, 0.03);
  expect_close(w, of.w, 0.3);
}

TEST(ResolveRegressors, FindsSignsAndScalesOfRowsOfAnyNorm) {
  const Drawn of({.width = 7, .num_experts = 3, .link = "identity", .noise = 0.05});
  const Tensor factors = torch::tensor({-1.4, 0.3, -2.0}, torch::kDouble).unsqueeze(1);
  const Tensor found =
      resolve_regressors(of.x, of.y, of.a * factors, torch::zeros_like(of.w), Link::identity, 0.05);
  expect_close(found, of.a, 1e-9);
}

TEST(ResolveRegressors, TurnsTheDualBasisIntoTheRegressors) {
  const Drawn of(
      {.width = 8, .num_experts = 3, .noise = 0.05, .regressors = kRandom, .gates = kRandom});
  const Tensor dual = at::linalg_pinv(of.a).t() * 1.7;
  const Tensor found =
      resolve_regressors(of.x, of.y, dual, torch::zeros_like(of.w), Link::identity, 0.05);
  expect_close(found, of.a, 1e-6);
}

}  // namespace
}  // namespace moesaic
