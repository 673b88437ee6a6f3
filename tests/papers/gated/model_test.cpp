// SPDX-License-Identifier: Apache-2.0
#include "moesaic/papers/gated.h"

#include <fmt/format.h>
#include <torch/script.h>

#include <cmath>

#include "base/support.h"
#include "moesaic/export/formats.h"
#include "support/matchers.h"
#include "support/models.h"
#include "support/tensors.h"

namespace moesaic {
namespace {

using at::Tensor;

using testing::model_from;

TEST(GatedMoE, OutputIsTheExpectationOfEquationOne) {
  const auto model = model_from(
      R"({"name": "gated-moe", "width": 4, "num_experts": 3, "link": "sigmoid", "gates": "random"})");
  const auto& mixture = dynamic_cast<GatedMoE&>(*model);
  const Tensor x = randn({5, 1, 1, 4}, 1, torch::kFloat);
  const Tensor found = model->forward(x).logits;
  for (int64_t b = 0; b < 5; ++b) {
    double sum = 0.0, y = 0.0;
    for (int64_t i = 0; i < 3; ++i) {
      const Tensor row = x[b][0][0];
      const double logit = i < 2 ? mixture.gates[i].dot(row).item<double>() : 0.0;
      const double z = mixture.regressors[i].dot(row).item<double>();
      sum += std::exp(logit);
      y += std::exp(logit) / (1.0 + std::exp(-z));
    }
    EXPECT_NEAR(found[b][0].item<double>(), y / sum, 1e-6);
  }
}

TEST(GatedMoE, BeginsWithUnitRegressorsAndTheGatesThatAreAskedFor) {
  const auto random = model_from(R"({"name": "gated-moe", "num_experts": 4, "gates": "random"})");
  const auto& mixture = dynamic_cast<GatedMoE&>(*random);
  expect_close(mixture.regressors.norm(2, {1}), torch::ones({4}), 1e-6);
  expect_close(mixture.gates.norm(2, {1}), torch::ones({3}), 1e-6);
  const auto along_axes = model_from(R"({"name": "gated-moe", "regressors": "axes"})");
  const auto& axes = dynamic_cast<GatedMoE&>(*along_axes);
  EXPECT_TRUE(torch::equal(axes.regressors, torch::eye(10).slice(0, 0, 2)));
  EXPECT_EQ(axes.gates.abs().sum().item<double>(), 0.0);
  EXPECT_THAT(
      test::usage_of([] {
        model_from(R"({"name": "gated-moe", "width": 2, "num_experts": 3, "regressors": "axes"})");
      }),
      HasSubstr("3 regressors along axes do not fit into 2 dimensions"));
}

TEST(GatedMoE, GatesMayHaveBiases) {
  const auto model = model_from(R"({"name": "gated-moe", "width": 4, "num_experts": 3,
                                    "gates": "random", "has_gate_biases": true})");
  auto& mixture = dynamic_cast<GatedMoE&>(*model);
  const torch::NoGradGuard no_grad;
  EXPECT_EQ(mixture.gates_bias.abs().sum().item<double>(), 0.0);
  mixture.gates_bias.copy_(torch::tensor({2.0F, -1.0F}));
  const Tensor x = randn({6, 1, 1, 4}, 1, torch::kFloat), rows = x.flatten(1);
  const Tensor logits =
      at::cat({rows.mm(mixture.gates.t()) + torch::tensor({2.0F, -1.0F}), torch::zeros({6, 1})}, 1);
  const Tensor wanted = (logits.softmax(1) * rows.mm(mixture.regressors.t())).sum(1, true);
  expect_close(model->forward(x).logits, wanted, 1e-6);
  torch::jit::Module script = to_torchscript(*model);
  expect_close(script.forward({x}).toTensor(), wanted, 1e-6);
  const Tensor gate = model->weight_directions().at("gate");
  EXPECT_EQ(gate.sizes(), (std::vector<int64_t>{2, 1, 5}));
  expect_close(gate.select(1, 0).select(1, 4), mixture.gates_bias, 0.0);
}

TEST(GatedMoE, TorchScriptEqualsItForEveryLink) {
  for (const char* link : kLinkNames) {
    SCOPED_TRACE(link);
    const auto model = model_from(fmt::format(
        R"({{"name": "gated-moe", "num_experts": 3, "gates": "random", "link": "{}"}})", link));
    torch::jit::Module script = to_torchscript(*model);
    for (const int64_t batch : {1, 7}) {
      const Tensor x = randn({batch, 1, 1, 10}, 5, torch::kFloat);
      expect_close(script.forward({x}).toTensor(), model->forward(x).logits, 1e-6);
    }
  }
}

}  // namespace
}  // namespace moesaic
