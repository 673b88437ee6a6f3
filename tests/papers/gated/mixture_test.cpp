// SPDX-License-Identifier: Apache-2.0
#include "moesaic/papers/gated.h"

#include <utility>

#include "moesaic/nn/init.h"
#include "support/tensors.h"

namespace moesaic::nn {
namespace {

using at::Tensor;

constexpr int64_t kWidth = 3, kHidden = 5;

/// Both views of the same unit, float64. With `saturated`, reset gates are 0 for even units and 1
/// for odd ones.
std::pair<GruMixture, GruMixture> both_views(bool saturated) {
  GruMixture mixture(kWidth, kHidden, GruView::mixture, make_generator(1));
  GruMixture recurrent(kWidth, kHidden, GruView::recurrent, make_generator(2));
  const torch::NoGradGuard no_grad;
  for (auto* gru : {&mixture, &recurrent}) (*gru)->to(torch::kDouble);
  mixture->weight_hh.copy_(randn({3 * kHidden, kHidden}, 3));
  if (saturated) {
    const Tensor even = torch::arange(kHidden).remainder(2).eq(0);
    mixture->bias_ih.slice(0, 0, kHidden).copy_(at::where(even, -60.0, 60.0));
  }
  for (const auto& item : mixture->named_parameters()) {
    recurrent->named_parameters()[item.key()].copy_(item.value());
  }
  return {mixture, recurrent};
}

TEST(GruMixture, BothViewsAgreeForResetGatesOfZeroAndOne) {
  const auto [mixture, recurrent] = both_views(true);
  const Tensor x = randn({4, 9, kWidth}, 5);
  const GruStates a = mixture->forward(x), b = recurrent->forward(x);
  EXPECT_LT(at::minimum(a.reset, 1.0 - a.reset).max().item<double>(), 1e-20);
  EXPECT_GT(a.reset.max().item<double>() - a.reset.min().item<double>(), 0.9);
  expect_close(a.states, b.states, 1e-12);
}

TEST(GruMixture, TheyDifferForSoftOnes) {
  const auto [mixture, recurrent] = both_views(false);
  const Tensor x = randn({4, 9, kWidth}, 5);
  EXPECT_GT((mixture->forward(x).states - recurrent->forward(x).states).abs().max().item<double>(),
            1e-3);
}

TEST(GruMixture, EqualsTorchsWithTheSameWeights) {
  for (const bool saturated : {false, true}) {
    const auto [mixture, recurrent] = both_views(saturated);
    torch::nn::GRU torchs(torch::nn::GRUOptions(kWidth, kHidden).batch_first(true));
    torchs->to(torch::kDouble);
    const torch::NoGradGuard no_grad;
    for (const auto& item : mixture->named_parameters()) {
      torchs->named_parameters()[item.key() + "_l0"].copy_(item.value());
    }
    const Tensor x = randn({4, 9, kWidth}, 5);
    const Tensor wanted = std::get<0>(torchs->forward(x));
    expect_close(recurrent->forward(x).states, wanted, 1e-12);
    if (saturated) expect_close(mixture->forward(x).states, wanted, 1e-6);
  }
}

TEST(GruMixture, BinaryGatesAreThresholdsWithTheGradientOfSigmoids) {
  for (const GruView view : {GruView::mixture, GruView::recurrent}) {
    GruMixture binary(kWidth, kHidden, view, make_generator(1), GruGates::binary);
    GruMixture sigmoid(kWidth, kHidden, view, make_generator(1));
    for (auto* gru : {&binary, &sigmoid}) (*gru)->to(torch::kDouble);
    const Tensor x = randn({4, 1, kWidth}, 5);
    const GruStates hard = binary->forward(x), soft = sigmoid->forward(x);
    // In one step the gates depend on the input alone.
    EXPECT_TRUE(torch::equal(hard.reset, soft.reset.ge(0.5).to(torch::kDouble)));
    EXPECT_TRUE(torch::equal(hard.update, soft.update.ge(0.5).to(torch::kDouble)));
    const auto slopes = [](const GruMixture& gru, const GruStates& of) {
      return torch::autograd::grad({(of.reset + 2.0 * of.update).sum()}, {gru->weight_ih})[0];
    };
    expect_close(slopes(binary, hard), slopes(sigmoid, soft), 1e-12);
    const GruStates longer = binary->forward(randn({4, 9, kWidth}, 6));
    for (const Tensor& gate : {longer.reset, longer.update}) {
      EXPECT_TRUE(torch::equal(gate, gate.square()));
    }
    // Both forms of the candidate agree for such gates (section 2).
    GruMixture other(kWidth, kHidden,
                     view == GruView::mixture ? GruView::recurrent : GruView::mixture,
                     make_generator(1), GruGates::binary);
    other->to(torch::kDouble);
    expect_close(other->forward(randn({4, 9, kWidth}, 6)).states, longer.states, 1e-12);
  }
}

TEST(GruMixture, IsAMixtureOfMixturesByPlainLoops) {
  const auto [gru, other] = both_views(false);
  const Tensor x = randn({1, 4, kWidth}, 5);
  const torch::NoGradGuard no_grad;
  const GruStates found = gru->forward(x);
  Tensor h = torch::zeros({kHidden}, torch::kDouble);
  for (int64_t t = 0; t < 4; ++t) {
    const Tensor u = gru->weight_ih.mv(x[0][t]) + gru->bias_ih;
    const Tensor v = gru->weight_hh.mv(h) + gru->bias_hh;
    Tensor next = torch::empty_like(h);
    for (int64_t i = 0; i < kHidden; ++i) {
      const auto at = [&](const Tensor& of, int64_t part) {
        return of[part * kHidden + i].item<double>();
      };
      const double r = 1.0 / (1.0 + std::exp(-at(u, 0) - at(v, 0)));
      const double z = 1.0 / (1.0 + std::exp(at(u, 1) + at(v, 1)));
      const double inner = (1.0 - r) * std::tanh(at(u, 2)) + r * std::tanh(at(u, 2) + at(v, 2));
      next[i] = (1.0 - z) * h[i].item<double>() + z * inner;
      EXPECT_NEAR(found.update[0][t][i].item<double>(), z, 1e-12);
      EXPECT_NEAR(found.reset[0][t][i].item<double>(), r, 1e-12);
    }
    h = next;
    expect_close(found.states[0][t], h, 1e-12);
  }
}

TEST(GruMixture, GradientsEqualFiniteDifferences) {
  const auto [gru, other] = both_views(false);
  expect_gradients([&](const auto& in) { return gru->forward(in[0]).states; },
                   {randn({2, 3, kWidth}, 5).set_requires_grad(true)});
}

}  // namespace
}  // namespace moesaic::nn
