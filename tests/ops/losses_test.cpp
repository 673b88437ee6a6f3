// SPDX-License-Identifier: Apache-2.0
#include "moesaic/ops/losses.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "moesaic/base/error.h"
#include "support/tensors.h"

namespace moesaic {
namespace {

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

double squared_variation(const std::vector<double>& values) {
  double mean = 0, variance = 0;
  for (const double v : values) mean += v / static_cast<double>(values.size());
  for (const double v : values) {
    variance += (v - mean) * (v - mean) / static_cast<double>(values.size());
  }
  return variance / (mean * mean);
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
    wanted += squared_variation(importance) / 2;
  }
  EXPECT_NEAR(importance_loss(logits, 6).item<double>(), wanted, 1e-6);
  EXPECT_NEAR(importance_loss(torch::zeros({8, 4}), 0).item<double>(), 0.0, 1e-12);
}

TEST(GshardLoss, IsExpertsSquaredTimesMeanOfFractionTimesMeanGate) {
  const at::Tensor logits = randn({10, 3}, 2);
  const auto gates = softmax_rows(logits);
  std::vector<double> fraction(3, 0.0), mean(3, 0.0);
  for (int64_t t = 0; t < 10; ++t) {
    fraction[std::max_element(gates[t].begin(), gates[t].end()) - gates[t].begin()] += 0.1;
    for (int64_t e = 0; e < 3; ++e) mean[e] += gates[t][e] / 10;
  }
  double wanted = 0;
  for (int64_t e = 0; e < 3; ++e) wanted += 9.0 * fraction[e] * mean[e] / 3;
  EXPECT_NEAR(gshard_loss(logits, 0).item<double>(), wanted, 1e-6);
}

TEST(LoadLoss, IsTheSquaredVariationOfTheChanceToBeSelectedAgain) {
  const at::Tensor logits = randn({12, 5}, 4), noisy = logits + 0.3 * randn({12, 5}, 5);
  for (const int64_t k : {1, 2, 5}) {
    double wanted = 0;
    for (int64_t group = 0; group < 3; ++group) {
      std::vector<double> load(5, 0.0);
      for (int64_t t = group * 4; t < group * 4 + 4; ++t) {
        std::vector<double> sorted;
        for (int64_t e = 0; e < 5; ++e) sorted.push_back(noisy[t][e].item<double>());
        std::sort(sorted.rbegin(), sorted.rend());
        for (int64_t e = 0; e < 5; ++e) {
          const double z = (sorted[k - 1] - logits[t][e].item<double>()) / 0.3;
          load[e] += (1.0 - 0.5 * (1.0 + std::erf(z / std::sqrt(2.0)))) / 4;
        }
      }
      wanted += squared_variation(load) / 3;
    }
    EXPECT_NEAR(load_loss(logits, noisy, k, 0.3, 4).item<double>(), wanted, 1e-6 * (1 + wanted));
  }
}

TEST(LoadLoss, TakesLogitsOfFewerDigitsThanTheirNoisyOnes) {
  for (const at::ScalarType type : {torch::kBFloat16, torch::kHalf}) {
    const at::Tensor logits = randn({12, 5}, 4).to(type), wide = logits.to(torch::kFloat);
    const at::Tensor noisy = wide + 0.3 * randn({12, 5}, 5, torch::kFloat);
    EXPECT_TRUE(at::equal(load_loss(logits, noisy, 2, 0.3, 4), load_loss(wide, noisy, 2, 0.3, 4)));
  }
}

TEST(SwitchBalanceLoss, IsExpertsTimesTheSumOfFractionTimesProxy) {
  const at::Tensor logits = randn({12, 3}, 6);
  const auto gates = softmax_rows(logits);
  double by_gate = 0, by_logit = 0;
  for (int64_t group = 0; group < 2; ++group) {
    for (int64_t e = 0; e < 3; ++e) {
      double fraction = 0, gate = 0, logit = 0;
      for (int64_t t = group * 6; t < group * 6 + 6; ++t) {
        fraction += std::max_element(gates[t].begin(), gates[t].end()) - gates[t].begin() == e;
        gate += gates[t][e] / 6;
        logit += logits[t][e].item<double>() / 6;
      }
      by_gate += 3 * fraction / 6 * gate / 2;
      by_logit += 3 * fraction / 6 * logit / 2;
    }
  }
  EXPECT_NEAR(switch_balance_loss(logits, 6).item<double>(), by_gate, 1e-6);
  EXPECT_NEAR(switch_balance_loss(logits, 6, BalanceProxy::logit).item<double>(), by_logit, 1e-6);
  EXPECT_EQ(switch_balance_loss(logits, 6).item<double>(), gshard_loss(logits, 6).item<double>());
}

TEST(RouterZLoss, IsTheMeanSquareOfTheLogarithmOfTheSumOfExponentials) {
  const at::Tensor logits = 3 * randn({8, 4}, 7);
  double wanted = 0;
  for (int64_t t = 0; t < 8; ++t) {
    double sum = 0;
    for (int64_t e = 0; e < 4; ++e) sum += std::exp(logits[t][e].item<double>());
    wanted += std::log(sum) * std::log(sum) / 8;
  }
  EXPECT_NEAR(router_z_loss(logits, 4).item<double>(), wanted, 1e-6 * wanted);
}

using Loss = std::function<at::Tensor(const std::vector<at::Tensor>&)>;

/// Central differences of a loss that is computed in float64 and returned in float32: a large step
/// keeps the rounding small.
void expect_loss_gradient(const Loss& loss, std::vector<at::Tensor> inputs) {
  constexpr double kStep = 2e-3;
  for (auto& input : inputs) input.set_requires_grad(true);
  loss(inputs).backward();
  const torch::NoGradGuard no_grad;
  for (auto& input : inputs) {
    double* data = input.mutable_data_ptr<double>();
    for (int64_t i = 0; i < input.numel(); ++i) {
      const double before = data[i];
      data[i] = before + kStep;
      const double up = loss(inputs).item<double>();
      data[i] = before - kStep;
      const double down = loss(inputs).item<double>();
      data[i] = before;
      const double found = input.grad().view({-1})[i].item<double>();
      EXPECT_NEAR(found, (up - down) / (2 * kStep), 1e-3 * (1 + std::abs(found)));
    }
  }
}

TEST(RouterLosses, GradientsEqualFiniteDifferences) {
  const auto both = [] { return std::vector<at::Tensor>{randn({8, 4}, 8), randn({8, 4}, 9)}; };
  const auto one = [] { return std::vector<at::Tensor>{randn({8, 4}, 8)}; };
  expect_loss_gradient([](const auto& in) { return importance_loss(in[0], 4); }, one());
  expect_loss_gradient([](const auto& in) { return gshard_loss(in[0], 4); }, one());
  expect_loss_gradient([](const auto& in) { return switch_balance_loss(in[0], 4); }, one());
  expect_loss_gradient(
      [](const auto& in) { return switch_balance_loss(in[0], 4, BalanceProxy::logit); }, one());
  expect_loss_gradient([](const auto& in) { return router_z_loss(in[0], 0); }, one());
  expect_loss_gradient([](const auto& in) { return load_loss(in[0], in[1], 2, 1.0, 4); }, both());
}

TEST(RouterLosses, AreFloat32ForEveryFloatingType) {
  for (const auto type : {torch::kDouble, torch::kFloat, torch::kBFloat16}) {
    const at::Tensor logits = randn({8, 4}, 3, type);
    for (const at::Tensor& loss :
         {importance_loss(logits, 4), gshard_loss(logits, 4), switch_balance_loss(logits, 4),
          router_z_loss(logits, 4), load_loss(logits, logits, 1, 0.5, 4)}) {
      EXPECT_EQ(loss.scalar_type(), torch::kFloat);
      EXPECT_EQ(loss.dim(), 0);
    }
  }
}

TEST(RouterLosses, RefuseWrongInput) {
  EXPECT_THROW(importance_loss(torch::zeros({10, 4}), 3), Error);
  EXPECT_THROW(gshard_loss(torch::zeros({0, 4}), 0), Error);
  EXPECT_THROW(router_z_loss(torch::zeros({4}), 0), Error);
  EXPECT_THROW(switch_balance_loss(torch::zeros({4, 2}, torch::kLong), 0), Error);
  const at::Tensor logits = torch::zeros({4, 2});
  EXPECT_THROW(load_loss(logits, torch::zeros({4, 3}), 1, 0.5, 0), Error);
  EXPECT_THROW(load_loss(logits, logits, 3, 0.5, 0), Error);
  EXPECT_THROW(load_loss(logits, logits, 0, 0.5, 0), Error);
  EXPECT_THROW(load_loss(logits, logits, 1, 0.0, 0), Error);
}

}  // namespace
}  // namespace moesaic
