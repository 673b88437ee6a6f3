// SPDX-License-Identifier: Apache-2.0
#include "moesaic/ops/losses.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "moesaic/base/error.h"
#include "support/tensors.h"

namespace moesaic {
namespace {

using testing::randn;

std::vector<std::vector<double>> softmax_rows(const at::Tensor& logits) {
  std::vector<std::vector<double>> gates(logits.size(0), std::vector<double>(logits.size(1)));
  for (int64_t t = 0; t < logits.size(0); ++t) {
    double sum = 0;
    for (int64_t e = 0; e < logits.size(1); ++e) sum += std::exp(logits[t][e].item<double>());
    for (int64_t e = 0; e < logits.size(1); ++e) {
      gates[t][e] = std::exp(logits[t][e].item<double>()) / sum;
    }
  }
  return gates;
}

TEST(ImportanceLoss, IsTheSquaredVariationOfTheExpertsImportanceMeanOverGroups) {
  const at::Tensor logits = randn({12, 4}, 1);
  const auto gates = softmax_rows(logits);
  double wanted = 0;
  for (int64_t group = 0; group < 2; ++group) {
    std::vector<double> importance(4, 0.0);
    for (int64_t t = group * 6; t < group * 6 + 6; ++t) {
      for (int64_t e = 0; e < 4; ++e) importance[e] += gates[t][e];
    }
    double mean = 0, variance = 0;
    for (const double v : importance) mean += v / 4;
    for (const double v : importance) variance += (v - mean) * (v - mean) / 4;
    wanted += variance / (mean * mean) / 2;
  }
  EXPECT_NEAR(importance_loss(logits, 6).item<double>(), wanted, 1e-6);
  EXPECT_NEAR(importance_loss(torch::zeros({8, 4}), 0).item<double>(), 0.0, 1e-12);
}

TEST(GshardLoss, IsExpertsSquaredTimesMeanOfShareTimesMeanGate) {
  const at::Tensor logits = randn({10, 3}, 2);
  const auto gates = softmax_rows(logits);
  std::vector<double> share(3, 0.0), mean(3, 0.0);
  for (int64_t t = 0; t < 10; ++t) {
    share[std::max_element(gates[t].begin(), gates[t].end()) - gates[t].begin()] += 0.1;
    for (int64_t e = 0; e < 3; ++e) mean[e] += gates[t][e] / 10;
  }
  double wanted = 0;
  for (int64_t e = 0; e < 3; ++e) wanted += 9.0 * share[e] * mean[e] / 3;
  EXPECT_NEAR(gshard_loss(logits, 0).item<double>(), wanted, 1e-6);
}

TEST(RouterLosses, AreFloat32AndDifferentiable) {
  for (const auto loss : {importance_loss, gshard_loss}) {
    at::Tensor logits = randn({8, 4}, 3, torch::kFloat).set_requires_grad(true);
    const at::Tensor value = loss(logits, 4);
    EXPECT_EQ(value.scalar_type(), torch::kFloat);
    value.backward();
    EXPECT_GT(logits.grad().abs().sum().item<double>(), 0.0);
  }
}

TEST(RouterLosses, RefuseAGroupSizeThatDoesNotDivide) {
  EXPECT_THROW(importance_loss(torch::zeros({10, 4}), 3), Error);
  EXPECT_THROW(gshard_loss(torch::zeros({0, 4}), 0), Error);
}

}  // namespace
}  // namespace moesaic
