// SPDX-License-Identifier: Apache-2.0
#include "moesaic/ops/grouped_mlp.h"

#include <cmath>

#include "moesaic/base/error.h"
#include "ops/activation_reference.h"
#include "support/tensors.h"

namespace moesaic {
namespace {

using testing::activation_reference;
using testing::all_activations;

ExpertWeights random_weights(int64_t experts, int64_t width, int64_t hidden, at::ScalarType type) {
  return {randn({experts, width, hidden}, 11, type) * 0.3, randn({experts, hidden}, 12, type),
          randn({experts, hidden, width}, 13, type) * 0.3, randn({experts, width}, 14, type)};
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
        const double active = activation_reference(sum, activation);
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
  for (const auto activation : all_activations()) {
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
  EXPECT_TRUE(torch::allclose(z, torch::tensor({{0.0F}, {1e4F}, {0.0F}, {0.0F}}), 0, 0));
}

TEST(GroupedMlp, GradientsEqualFiniteDifferences) {
  const at::Tensor offsets = index({0, 3, 3, 5});
  for (const auto activation : all_activations()) {
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

TEST(GroupedMlp, WideLayersEqualPlainLoops) {
  // More than one block of rows, one stretch of the hidden width, and partial panels of both.
  const std::vector<int32_t> offsets = {0, 270, 275};
  const at::Tensor rows = randn({275, 35}, 1, torch::kFloat);
  const ExpertWeights w = random_weights(2, 35, 801, torch::kFloat);
  expect_close(grouped_mlp(rows, index(offsets), w, Activation::gelu),
               reference(rows, offsets, w, Activation::gelu), 5e-6);
}

TEST(GroupedMlp, WideGradientsEqualThoseOfAutograd) {
  const ExpertWeights w = random_weights(1, 35, 801, torch::kDouble);
  std::vector<at::Tensor> inputs = {randn({270, 35}, 5), w.w1, w.b1, w.w2, w.b2};
  for (auto& input : inputs) input.set_requires_grad(true);
  const at::Tensor weight = randn({270, 35}, 8);
  (grouped_mlp(inputs[0], index({0, 270}), {inputs[1], inputs[2], inputs[3], inputs[4]},
               Activation::tanh) *
   weight)
      .sum()
      .backward();
  std::vector<at::Tensor> gradients;
  for (auto& input : inputs) {
    gradients.push_back(input.grad());
    input.mutable_grad() = at::Tensor();
  }
  const at::Tensor hidden = torch::tanh(torch::mm(inputs[0], inputs[1][0]) + inputs[2][0]);
  ((torch::mm(hidden, inputs[3][0]) + inputs[4][0]) * weight).sum().backward();
  for (size_t i = 0; i < inputs.size(); ++i) expect_close(gradients[i], inputs[i].grad(), 1e-12);
}

TEST(GroupedMlp, WeightsMayBeTransposedOrStrided) {
  const ExpertWeights w = random_weights(2, 8, 40, torch::kFloat);
  const at::Tensor rows = randn({50, 8}, 7, torch::kFloat);
  const at::Tensor offsets = index({0, 20, 50});
  const auto turned = [](const at::Tensor& t) {
    return t.transpose(1, 2).contiguous().transpose(1, 2);
  };
  const auto scattered = [](const at::Tensor& t) { return torch::stack({t, t}, -1).select(-1, 1); };
  const at::Tensor wanted = grouped_mlp(rows, offsets, w, Activation::gelu);
  EXPECT_TRUE(torch::equal(
      grouped_mlp(rows, offsets, {turned(w.w1), w.b1, turned(w.w2), w.b2}, Activation::gelu),
      wanted));
  EXPECT_TRUE(
      torch::equal(grouped_mlp(scattered(rows), offsets,
                               {scattered(w.w1), scattered(w.b1), scattered(w.w2), scattered(w.b2)},
                               Activation::gelu),
                   wanted));
}

TEST(GroupedMlp, Bfloat16InferenceIsCloseToFloat32) {
  const at::Tensor offsets = index({0, 20, 20, 50});
  for (const auto& [width, hidden] : {std::pair{64, 128}, {36, 70}, {25, 37}}) {
    const ExpertWeights w = random_weights(3, width, hidden, torch::kFloat);
    const at::Tensor rows = randn({53, width}, 7, torch::kFloat);
    const auto half = [](const at::Tensor& t) { return t.to(torch::kBFloat16); };
    const at::Tensor y =
        grouped_mlp(half(rows), offsets, {half(w.w1), half(w.b1), half(w.w2), half(w.b2)},
                    Activation::gelu_tanh);
    EXPECT_EQ(y.scalar_type(), torch::kBFloat16);
    expect_close(y.to(torch::kFloat), grouped_mlp(rows, offsets, w, Activation::gelu_tanh), 2e-2);
    EXPECT_EQ(y.slice(0, 50).abs().max().item<float>(), 0.0F);
  }
}

TEST(GroupedMlp, NanIsNotHiddenByAnyActivation) {
  ExpertWeights w = random_weights(1, 6, 5, torch::kFloat);
  w.w1[0][2][3] = NAN;
  for (const auto type : {torch::kFloat, torch::kDouble}) {
    const ExpertWeights cast{w.w1.to(type), w.b1.to(type), w.w2.to(type), w.b2.to(type)};
    for (const Activation activation : all_activations()) {
      const at::Tensor rows = randn({4, 6}, 7, type).set_requires_grad(true);
      const at::Tensor y = grouped_mlp(rows, index({0, 4}), cast, activation);
      EXPECT_TRUE(y.isnan().all().item<bool>());
      y.sum().backward();
      EXPECT_TRUE(rows.grad().select(1, 2).isnan().all().item<bool>());
    }
  }
}

TEST(GroupedMlp, RefusesExpertsWithoutHiddenUnitsAndSecondDerivatives) {
  EXPECT_THROW(grouped_mlp(torch::zeros({4, 3}), index({0, 4}),
                           random_weights(1, 3, 0, torch::kFloat), Activation::relu),
               Error);
  const ExpertWeights w = random_weights(1, 6, 5, torch::kDouble);
  const at::Tensor rows = randn({4, 6}, 7).set_requires_grad(true);
  const at::Tensor y = grouped_mlp(rows, index({0, 4}), w, Activation::tanh);
  const at::Tensor slope =
      torch::autograd::grad({y.sum()}, {rows}, {}, {}, /*create_graph=*/true)[0];
  EXPECT_THROW(slope.sum().backward(), std::exception);
}

TEST(GroupedMlp, Bfloat16IsCloseToFloat32ForwardsAndBackwards) {
  const ExpertWeights w = random_weights(2, 36, 70, torch::kFloat);
  const at::Tensor offsets = index({0, 20, 50});
  std::vector<std::vector<at::Tensor>> results;
  for (const auto type : {torch::kFloat, torch::kBFloat16}) {
    std::vector<at::Tensor> in = {randn({50, 36}, 7, torch::kFloat), w.w1, w.b1, w.w2, w.b2};
    for (auto& tensor : in) tensor = tensor.to(type).detach().requires_grad_();
    const at::Tensor y =
        grouped_mlp(in[0], offsets, {in[1], in[2], in[3], in[4]}, Activation::gelu_tanh);
    y.sum().backward();
    results.push_back({y.detach()});
    for (auto& tensor : in) results.back().push_back(tensor.grad());
  }
  for (size_t i = 0; i < results[0].size(); ++i) {
    EXPECT_EQ(results[1][i].scalar_type(), torch::kBFloat16);
    expect_close(results[1][i], results[0][i], 2e-2);
  }
}

TEST(GroupedMlp, ResultsDoNotDependOnThreads) {
  const ExpertWeights w = random_weights(3, 40, 50, torch::kFloat);
  const at::Tensor rows = randn({700, 40}, 7, torch::kFloat);
  const at::Tensor offsets = index({0, 15, 600, 700});
  const int threads = at::get_num_threads();
  std::vector<at::Tensor> found;
  for (const int count : {1, 2, 5}) {
    at::set_num_threads(count);
    ExpertWeights own = w;
    own.w1 = w.w1.clone().requires_grad_();
    const at::Tensor y = grouped_mlp(rows, offsets, own, Activation::celu);
    y.sum().backward();
    found.push_back(torch::cat({y.detach().flatten(), own.w1.grad().flatten()}));
  }
  at::set_num_threads(threads);
  EXPECT_TRUE(torch::equal(found[0], found[1]));
  EXPECT_TRUE(torch::equal(found[0], found[2]));
}

TEST(GroupedMlp, RefusesWrongShapesAndNames) {
  const ExpertWeights w = random_weights(2, 4, 6, torch::kFloat);
  const at::Tensor rows = torch::zeros({5, 4});
  EXPECT_THROW(grouped_mlp(rows, index({0, 5}), w, Activation::relu), Error);
  EXPECT_THROW(grouped_mlp(torch::zeros({5, 3}), index({0, 2, 5}), w, Activation::relu), Error);
  EXPECT_THROW(grouped_mlp(rows.to(torch::kDouble), index({0, 2, 5}), w, Activation::relu), Error);
  EXPECT_THROW(grouped_mlp(torch::zeros({5, 0}), index({0, 2, 5}),
                           random_weights(2, 0, 6, torch::kFloat), Activation::relu),
               Error);
  EXPECT_THROW(activation_from_name("gelu_tan"), Error);
}

}  // namespace
}  // namespace moesaic
