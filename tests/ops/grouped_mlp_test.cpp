// SPDX-License-Identifier: Apache-2.0
#include "moesaic/ops/grouped_mlp.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>

#include "moesaic/base/error.h"
#include "support/tensors.h"

namespace moesaic {
namespace {

using testing::expect_close;
using testing::expect_gradients;
using testing::randn;

ExpertWeights random_weights(int64_t experts, int64_t width, int64_t hidden, at::ScalarType type) {
  return {randn({experts, width, hidden}, 11, type) * 0.3, randn({experts, hidden}, 12, type),
          randn({experts, hidden, width}, 13, type) * 0.3, randn({experts, width}, 14, type)};
}

double activate(double x, Activation activation) {
  if (activation == Activation::relu) return x > 0 ? x : 0;
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}

/// Plain loops over doubles.
at::Tensor reference(const at::Tensor& rows_in, const std::vector<int32_t>& offsets,
                     const ExpertWeights& weights, Activation activation) {
  const at::Tensor rows = rows_in.to(torch::kDouble).contiguous();
  const at::Tensor w1 = weights.w1.to(torch::kDouble), b1 = weights.b1.to(torch::kDouble);
  const at::Tensor w2 = weights.w2.to(torch::kDouble), b2 = weights.b2.to(torch::kDouble);
  const auto x = rows.accessor<double, 2>();
  const auto W1 = w1.accessor<double, 3>(), W2 = w2.accessor<double, 3>();
  const auto B1 = b1.accessor<double, 2>(), B2 = b2.accessor<double, 2>();
  at::Tensor y_tensor = torch::zeros_like(rows);
  auto y = y_tensor.accessor<double, 2>();
  for (size_t e = 0; e + 1 < offsets.size(); ++e) {
    for (int64_t r = offsets[e]; r < offsets[e + 1]; ++r) {
      for (int64_t j = 0; j < w2.size(2); ++j) y[r][j] = B2[e][j];
      for (int64_t h = 0; h < w1.size(2); ++h) {
        double sum = B1[e][h];
        for (int64_t i = 0; i < w1.size(1); ++i) sum += x[r][i] * W1[e][i][h];
        const double active = activate(sum, activation);
        for (int64_t j = 0; j < w2.size(2); ++j) y[r][j] += active * W2[e][h][j];
      }
    }
  }
  return y_tensor;
}

at::Tensor index(const std::vector<int32_t>& offsets) {
  return torch::tensor(offsets, torch::kInt);
}

TEST(GroupedMlp, EqualsPlainLoopsWithEmptyAndLargeExpertsAndUnusedRows) {
  const std::vector<int32_t> offsets = {0, 0, 300, 300, 301, 310};
  for (const auto activation : {Activation::relu, Activation::gelu_tanh}) {
    for (const auto type : {torch::kFloat, torch::kDouble}) {
      const at::Tensor rows = randn({320, 7}, 1, type);
      const ExpertWeights weights = random_weights(5, 7, 19, type);
      const at::Tensor y = grouped_mlp(rows, index(offsets), weights, activation);
      expect_close(y, reference(rows, offsets, weights, activation),
                   type == torch::kFloat ? 2e-6 : 1e-13);
      EXPECT_EQ(y.slice(0, 310).abs().sum().item<double>(), 0.0);
    }
  }
}

TEST(GroupedMlp, GeluIsExactOverItsWholeRange) {
  // Identity weights turn the operator into the bare activation.
  at::Tensor x = torch::linspace(-12, 12, 4801).view({-1, 1});
  const ExpertWeights weights{torch::ones({1, 1, 1}), torch::zeros({1, 1}), torch::ones({1, 1, 1}),
                              torch::zeros({1, 1})};
  const at::Tensor y = grouped_mlp(x, index({0, 4801}), weights, Activation::gelu_tanh);
  EXPECT_LE((y - at::gelu(x.to(torch::kDouble), "tanh")).abs().max().item<double>(), 2e-6);
  const at::Tensor far = torch::tensor({{-1e4F}, {1e4F}, {-100.0F}, {0.0F}});
  const at::Tensor z = grouped_mlp(far, index({0, 4}), weights, Activation::gelu_tanh);
  EXPECT_TRUE(torch::allclose(z, torch::tensor({{0.0F}, {1e4F}, {0.0F}, {0.0F}}), 0, 1e-30));
}

TEST(GroupedMlp, GradientsEqualFiniteDifferences) {
  const at::Tensor offsets = index({0, 3, 3, 5});
  for (const auto activation : {Activation::relu, Activation::gelu_tanh}) {
    const ExpertWeights w = random_weights(3, 4, 6, torch::kDouble);
    std::vector<at::Tensor> inputs = {randn({7, 4}, 5), w.w1, w.b1, w.w2, w.b2};
    for (auto& input : inputs) input.set_requires_grad(true);
    expect_gradients(
        [&](const auto& in) {
          return grouped_mlp(in[0], offsets, {in[1], in[2], in[3], in[4]}, activation);
        },
        inputs);
  }
}

TEST(GroupedMlp, AnExpertWithoutRowsGetsExactlyZeroGradients) {
  ExpertWeights w = random_weights(2, 4, 6, torch::kFloat);
  for (auto* tensor : {&w.w1, &w.b1, &w.w2, &w.b2}) tensor->set_requires_grad(true);
  grouped_mlp(randn({5, 4}, 6, torch::kFloat), index({0, 0, 5}), w, Activation::gelu_tanh)
      .sum()
      .backward();
  for (const auto* tensor : {&w.w1, &w.b1, &w.w2, &w.b2}) {
    EXPECT_EQ(tensor->grad()[0].abs().sum().item<double>(), 0.0);
    EXPECT_GT(tensor->grad()[1].abs().sum().item<double>(), 0.0);
  }
}

TEST(GroupedMlp, TwoRunsAreBitwiseEqual) {
  const ExpertWeights w = random_weights(4, 32, 64, torch::kFloat);
  const at::Tensor rows = randn({1000, 32}, 7, torch::kFloat);
  const at::Tensor offsets = index({0, 100, 600, 700, 1000});
  const at::Tensor first = grouped_mlp(rows, offsets, w, Activation::gelu_tanh);
  EXPECT_TRUE(torch::equal(first, grouped_mlp(rows, offsets, w, Activation::gelu_tanh)));
}

TEST(GroupedMlp, RefusesWrongShapesAndNames) {
  const ExpertWeights w = random_weights(2, 4, 6, torch::kFloat);
  const at::Tensor rows = torch::zeros({5, 4});
  EXPECT_THROW(grouped_mlp(rows, index({0, 5}), w, Activation::relu), Error);
  EXPECT_THROW(grouped_mlp(torch::zeros({5, 3}), index({0, 2, 5}), w, Activation::relu), Error);
  EXPECT_THROW(grouped_mlp(rows.to(torch::kDouble), index({0, 2, 5}), w, Activation::relu), Error);
  EXPECT_THROW(activation_from_name("gelu_tan"), Error);
}

}  // namespace
}  // namespace moesaic
