// SPDX-License-Identifier: Apache-2.0
// Against scikit-learn's numbers; see tests/golden/README.md.
#include "moesaic/report/evaluation_figures.h"

#include <string>

#include "moesaic/base/error.h"
#include "moesaic/checkpoint/tensors.h"
#include "support/tensors.h"

namespace moesaic {
namespace {

at::Tensor golden(const std::string& name) {
  static const TensorMap all =
      read_tensors(MOESAIC_TEST_SOURCE_DIR "/tests/golden/tsne.safetensors");
  return all.at(name);
}

/// KL(P || Q) with q_ij ~ 1 / (1 + |y_i - y_j|^2).
double tsne_divergence(const at::Tensor& p_NN, const at::Tensor& y_N2) {
  const at::Tensor squares_NN = (y_N2.unsqueeze(0) - y_N2.unsqueeze(1)).square().sum(2);
  const at::Tensor weight_NN = (1.0 + squares_NN).reciprocal().fill_diagonal_(0.0);
  const at::Tensor q_NN = weight_NN / weight_NN.sum();
  return at::xlogy(p_NN, at::where(p_NN > 0, p_NN / q_NN, 1.0)).sum().item<double>();
}

TEST(Tsne, AffinitiesEqualScikitLearns) {
  const at::Tensor p = tsne_affinities(golden("x"), 15.0);
  // Both stop within 1e-5 of the wanted entropy, on different sides.
  EXPECT_LT((p - golden("p")).abs().max().item<double>(), 1e-4 * golden("p").max().item<double>());
  EXPECT_NEAR(p.sum().item<double>(), 1.0, 1e-12);
  EXPECT_TRUE(torch::equal(p, p.t()));
}

TEST(Tsne, DivergenceAndGradientEqualScikitLearns) {
  const at::Tensor p = golden("p"), y = golden("y");
  EXPECT_NEAR(tsne_divergence(p, y), golden("divergence").item<double>(), 1e-10);
  expect_close(tsne_gradient(p, y), golden("gradient"), 1e-12);
  expect_close(tsne_gradient(p.to(torch::kFloat), y.to(torch::kFloat)).to(torch::kDouble),
               golden("gradient"), 1e-6);
}

TEST(Tsne, TheGradientIsThatOfTheDivergence) {
  const at::Tensor p = tsne_affinities(randn({9, 3}, 1), 3.0), y = randn({9, 2}, 2);
  const at::Tensor grad = tsne_gradient(p, y);
  constexpr double kStep = 1e-6;
  for (int64_t i = 0; i < y.numel(); ++i) {
    at::Tensor more = y.clone(), less = y.clone();
    more.view(-1)[i] += kStep;
    less.view(-1)[i] -= kStep;
    const double slope = (tsne_divergence(p, more) - tsne_divergence(p, less)) / (2 * kStep);
    EXPECT_NEAR(grad.view(-1)[i].item<double>(), slope, 1e-7);
  }
}

TEST(Tsne, DescendsAsFarAsScikitLearnAndKeepsCloudsApart) {
  const at::Tensor cloud = golden("cloud");
  const at::Tensor embedding = tsne(cloud);
  const double reached = tsne_divergence(tsne_affinities(cloud, 30.0), embedding);
  EXPECT_LT(reached, 1.03 * golden("embedding_divergence").item<double>());
  // Point i is of cloud i % 3, and so is its nearest neighbour.
  at::Tensor distances = torch::cdist(embedding, embedding).fill_diagonal_(1e30);
  const at::Tensor of = torch::arange(300).remainder(3);
  EXPECT_TRUE(torch::equal(of.index_select(0, distances.argmin(1)), of));
  EXPECT_TRUE(torch::equal(embedding, tsne(cloud)));
}

TEST(Tsne, StopsWhereItIsTold) {
  int64_t calls = 0;
  TsneOptions options{.perplexity = 5};
  options.on_progress = [&](int64_t done, int64_t total) {
    EXPECT_EQ(total, 1000);
    return ++calls, done < 7;
  };
  EXPECT_EQ(tsne(randn({20, 3}, 1), options).size(0), 20);
  EXPECT_EQ(calls, 7);
}

TEST(Tsne, RefusesAPerplexityOfMoreThanTheOtherPoints) {
  EXPECT_THROW(tsne_affinities(randn({20, 3}, 1), 20.0), Error);
  EXPECT_THROW(tsne_affinities(randn({20, 3}, 1), 0.5), Error);
  EXPECT_NO_THROW(tsne_affinities(torch::zeros({4, 2}), 2.0));
}

}  // namespace
}  // namespace moesaic
