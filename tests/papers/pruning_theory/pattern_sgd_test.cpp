// SPDX-License-Identifier: Apache-2.0
#include "papers/pruning_theory/pattern_sgd.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/support.h"
#include "support/matchers.h"
#include "support/tensors.h"

namespace moesaic {
namespace {

using at::Tensor;

constexpr int64_t kExperts = 4, kPatterns = 7, kHidden = 5, kTokens = 9, kExamples = 6;

PatternWeights some_weights(double scale) {
  return {randn({kExperts, kPatterns}, 1, torch::kFloat) * scale,
          randn({kExperts, kPatterns, kHidden}, 2, torch::kFloat) * scale,
          torch::tensor({1.0F, 1.0F, -1.0F, -1.0F})};
}

PatternBatch some_batch(uint64_t seed) {
  const Tensor numbers = randn({kExamples, kTokens}, seed).abs() * 100;
  return {numbers.to(torch::kLong).remainder(kPatterns).to(torch::kInt),
          torch::tensor({1.0F, -1.0F, -1.0F, 1.0F, 1.0F, -1.0F})};
}

/// The step by plain loops over examples, experts, tokens as vectors and neurons, in float64.
struct PlainStep {
  Tensor router, neurons;
  double hinge = 0.0, accuracy = 0.0;
};

PlainStep plain_step(const PatternWeights& weights, const PatternBatch& batch,
                     const PatternSgdOptions& options) {
  const Tensor router = weights.router_Kd.to(torch::kDouble);
  const Tensor neurons = weights.neurons_Kdm.to(torch::kDouble);
  PlainStep made{router.clone(), neurons.clone()};
  for (int64_t b = 0; b < kExamples; ++b) {
    const double y = batch.y_B[b].item<double>();
    double f = 0.0;
    for (int64_t s = 0; s < kExperts; ++s) {
      const double a = weights.sign_K[s].item<double>();
      std::vector<int64_t> pattern;
      std::vector<double> value;
      for (int64_t j = 0; j < kTokens; ++j) {
        pattern.push_back(batch.tokens_Bn[b][j].item<int64_t>());
        value.push_back(router[s][pattern.back()].item<double>());
      }
      std::vector<size_t> order(kTokens);
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(),
                       [&](size_t i, size_t j) { return value[i] > value[j]; });
      order.resize(static_cast<size_t>(options.num_selected_tokens));
      double sum = 0.0, mean = 0.0;
      for (const size_t j : order) sum += std::exp(value[j]);
      std::vector<double> gates, outputs;
      for (const size_t j : order) {
        gates.push_back(std::exp(value[j]) / sum);
        outputs.push_back(neurons[s][pattern[j]].clamp_min(0).sum().item<double>());
        mean += gates.back() * outputs.back();
      }
      f += a * mean;
      for (size_t i = 0; i < order.size(); ++i) {
        const int64_t p = pattern[order[i]];
        const double share = y * a * gates[i] / kExamples;
        made.router[s][p] += options.router_lr * share * (outputs[i] - mean);
        for (int64_t r = 0; r < kHidden; ++r) {
          if (neurons[s][p][r].item<double>() > 0) {
            made.neurons[s][p][r] += options.expert_lr * share;
          }
        }
      }
    }
    made.hinge += std::max(0.0, 1.0 - y * f) / kExamples;
    made.accuracy += (y * f > 0 ? 1.0 : 0.0) / kExamples;
  }
  return made;
}

TEST(PatternSgd, AStepEqualsLoopsOverTokens) {
  for (const int64_t selected : {1, 3, 9}) {
    PatternWeights weights = some_weights(0.7);
    const PatternBatch batch = some_batch(5);
    const PatternSgdOptions options{selected, 0.3, 0.2};
    const PlainStep wanted = plain_step(weights, batch, options);
    const PatternStep made = pattern_sgd_step(weights, batch, options);
    expect_close(weights.router_Kd, wanted.router, 1e-6);
    expect_close(weights.neurons_Kdm, wanted.neurons, 1e-6);
    EXPECT_NEAR(made.hinge, wanted.hinge, 1e-6);
    EXPECT_EQ(made.accuracy, wanted.accuracy);
  }
}

/// Mean of 1 - y f over the batch, of tokens as vectors, for autograd.
Tensor eager_loss(const Tensor& router, const Tensor& neurons, const PatternWeights& weights,
                  const PatternBatch& batch, int64_t selected) {
  const Tensor x_BnD =
      torch::one_hot(batch.tokens_Bn.to(torch::kLong), kPatterns).to(torch::kDouble);
  const Tensor value_BnK = x_BnD.matmul(router.t());
  const auto [top_BlK, token_BlK] = value_BnK.topk(selected, 1);
  const Tensor gate_BlK = top_BlK.softmax(1);
  const Tensor hidden_BnKm = torch::einsum("bnd,kdm->bnkm", {x_BnD, neurons}).relu();
  const Tensor output_BlK = hidden_BnKm.sum(3).gather(1, token_BlK);
  const Tensor f_B = ((gate_BlK * output_BlK).sum(1) * weights.sign_K).sum(1);
  return (1 - batch.y_B * f_B).mean();
}

TEST(PatternSgd, ItsGradientIsThatOfAutograd) {
  PatternWeights weights = some_weights(0.7);
  const PatternBatch batch = some_batch(6);
  Tensor router = weights.router_Kd.to(torch::kDouble).requires_grad_(true);
  Tensor neurons = weights.neurons_Kdm.to(torch::kDouble).requires_grad_(true);
  eager_loss(router, neurons, weights, batch, 3).backward();
  const PatternWeights before{weights.router_Kd.clone(), weights.neurons_Kdm.clone(), {}};
  pattern_sgd_step(weights, batch, {3, 1.0, 1.0});
  expect_close(before.router_Kd - weights.router_Kd, router.grad(), 1e-6);
  expect_close(before.neurons_Kdm - weights.neurons_Kdm, neurons.grad(), 1e-6);
}

TEST(PatternSgd, NotANumberIsNoLossOfZero) {
  PatternWeights weights = some_weights(0.7);
  weights.neurons_Kdm.fill_(std::nanf(""));
  EXPECT_TRUE(std::isnan(pattern_sgd_step(weights, some_batch(5), {3, 0.1, 0.1}).hinge));
}

TEST(PatternSgd, RefusesToSelectMoreTokensThanThereAre) {
  PatternWeights weights = some_weights(0.7);
  EXPECT_THAT(test::failure_of([&] {
                pattern_sgd_step(weights, some_batch(5), {10, 0.1, 0.1});
              }),
              HasSubstr("cannot select 10 of 9 tokens"));
}

}  // namespace
}  // namespace moesaic
