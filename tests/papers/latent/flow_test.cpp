// SPDX-License-Identifier: Apache-2.0
// Phase I's steps on generated data against the population flow of theorem 4.3 of the latent paper.
#include <torch/torch.h>

#include <array>
#include <cmath>

#include "moesaic/papers/latent.h"
#include "papers/latent/spherical_sgd.h"
#include "support/matchers.h"

namespace moesaic {
namespace {

using at::Tensor;

constexpr int kDegree = 4;  // k*, of both local tasks, the global one and the activation.
using Alignments = std::array<double, 3>;  // With w_1, w_2 and w_g.

/// The three equations (appendix B.2) for two clusters, neurons that are orthogonal to the means,
/// biases of 0 and Hermite coefficients of 1: with G_c = k kappa_c^(k-1) / 2 and
/// G_g = k (s_1 + s_2) xi^(k-1) / 2, each alignment a has a' = G - a <alignments, G>.
Alignments slopes(const Alignments& at, double sum_of_signs) {
  Alignments pull, slope;
  double along = 0.0;
  for (size_t i = 0; i < 3; ++i) {
    pull[i] = kDegree * (i == 2 ? sum_of_signs : 1.0) * std::pow(at[i], kDegree - 1) / 2;
    along += at[i] * pull[i];
  }
  for (size_t i = 0; i < 3; ++i) slope[i] = pull[i] - at[i] * along;
  return slope;
}

/// Integrates them over `time` by the midpoint rule.
Alignments flow(Alignments at, double sum_of_signs, double time) {
  constexpr int kSteps = 4000;
  const double step = time / kSteps;
  for (int n = 0; n < kSteps; ++n) {
    Alignments middle = at;
    const Alignments first = slopes(at, sum_of_signs);
    for (size_t i = 0; i < 3; ++i) middle[i] += step / 2 * first[i];
    const Alignments second = slopes(middle, sum_of_signs);
    for (size_t i = 0; i < 3; ++i) at[i] += step * second[i];
  }
  return at;
}

constexpr Alignments kStart = {0.5, 0.3, 0.4};

/// Returns the mean alignments of neurons, each of which sees samples of its own.
Alignments trained(const LatentClustersConfig& config, double time) {
  constexpr int64_t kNeurons = 32, kBlock = 1000;
  constexpr double kRate = 2e-5;
  const LatentTruth truth = latent_truth(config);
  const Tensor tasks = at::cat({truth.local_Cd, truth.global_1d}).to(torch::kDouble);
  const Tensor basis = at::cat({tasks, truth.mean_Cd.to(torch::kDouble) / config.rho});
  Tensor rest = torch::ones({config.width}, torch::kDouble);
  rest = rest - basis.t().mv(basis.mv(rest));
  Tensor w = torch::tensor({kStart[0], kStart[1], kStart[2]}, torch::kDouble).matmul(tasks);
  w = w + rest / rest.norm() * std::sqrt(1.0 - w.square().sum().item<double>());
  SphericalNeurons neurons{w.to(torch::kFloat).repeat({kNeurons, 1}), torch::ones({kNeurons}),
                           torch::zeros({kNeurons}), torch::zeros({kNeurons, kDegree + 1})};
  neurons.hermite_NK.select(1, kDegree).fill_(1.0);
  RoutedSamples samples;
  samples.offset = torch::arange(kNeurons + 1, torch::kLong) * kBlock;
  samples.sample = torch::arange(kNeurons * kBlock, torch::kLong);
  samples.gate = torch::ones({kNeurons * kBlock});
  const auto blocks = static_cast<int64_t>(std::lround(time / (kRate * kBlock)));
  for (int64_t i = 0; i < blocks; ++i) {
    const DatasetInputs made =
        latent_examples(config, truth, "train", i * kNeurons * kBlock, kNeurons * kBlock);
    samples.x_Sd = made.values_NCHW.flatten(1);
    samples.y_S = made.targets_NK.flatten();
    spherical_sgd(neurons, samples, kRate);
  }
  const Tensor mean = neurons.w_Nd.to(torch::kDouble).mm(tasks.t()).mean(0);
  return {mean[0].item<double>(), mean[1].item<double>(), mean[2].item<double>()};
}

void expect_flow(const std::vector<double>& signs, double time) {
  const LatentClustersConfig config{
      .width = 8, .local = {{0, 0, 0, 0, 1}}, .global = {0, 0, 0, 0, 1}, .signs = signs};
  const Alignments wanted = flow(kStart, signs[0] + signs[1], time);
  const Alignments found = trained(config, time);
  for (size_t i = 0; i < 3; ++i) EXPECT_NEAR(found[i], wanted[i], 0.04) << i;
}

TEST(PopulationFlow, OfOneNetworkFindsALocalTaskAndLosesTheGlobalOne) {
  const Alignments end = flow(kStart, 0.0, 0.6);
  EXPECT_GT(end[0], kStart[0] + 0.1);
  EXPECT_LT(end[2], kStart[2] - 0.04);
  expect_flow({1, -1}, 0.6);
}

TEST(PopulationFlow, FindsTheGlobalTaskWhereTheSignsDoNotCancel) {
  EXPECT_GT(flow(kStart, 2.0, 0.4)[2], kStart[2] + 0.05);
  expect_flow({1, 1}, 0.4);
}

}  // namespace
}  // namespace moesaic
