// SPDX-License-Identifier: Apache-2.0
#include "moesaic/papers/latent.h"

#include <gmock/gmock.h>
#include <torch/script.h>

#include <cmath>

#include "base/support.h"
#include "moesaic/config/document.h"
#include "moesaic/export/formats.h"
#include "moesaic/models/registry.h"
#include "moesaic/prune/plan.h"
#include "prune/plan_networks.h"
#include "support/tensors.h"

namespace moesaic {
namespace {

using at::Tensor;

std::shared_ptr<LatentMoE> build_latent(const std::string& settings = "") {
  const auto model = std::dynamic_pointer_cast<LatentMoE>(
      build_model(Document::from_text(R"({"name": "latent-moe", "width": 6, "num_experts": 3,
                                          "num_neurons": 5)" +
                                          settings + "}",
                                      "model.json")
                      .root(),
                  3));
  const torch::NoGradGuard no_grad;
  model->moe->router->weight.copy_(randn({3, 6}, 7, torch::kFloat));
  return model;
}

double dot_product(const Tensor& a, const Tensor& b) {
  double sum = 0.0;
  for (int64_t j = 0; j < a.size(0); ++j) sum += a[j].item<double>() * b[j].item<double>();
  return sum;
}

/// sigma by the explicit polynomials of degrees 3 to 5, or the ReLU.
double activated(const LatentMoE& model, int64_t m, int64_t j, double z) {
  const Tensor& c = model.experts->hermite;
  if (!c.defined()) return std::max(z, 0.0);
  const double z2 = z * z;
  return c[m][j][3].item<double>() * (z2 * z - 3 * z) / std::sqrt(6.0) +
         c[m][j][4].item<double>() * (z2 * z2 - 6 * z2 + 3) / std::sqrt(24.0) +
         c[m][j][5].item<double>() * (z2 * z2 * z - 10 * z2 * z + 15 * z) / std::sqrt(120.0);
}

/// f_m(x) in plain loops.
double expert(const LatentMoE& model, int64_t m, const Tensor& x) {
  const nn::ShallowExpertsImpl& own = *model.experts;
  double sum = 0.0;
  for (int64_t j = 0; j < own.w.size(1); ++j) {
    const double z = dot_product(own.w[m][j], x) + own.b[m][j].item<double>();
    sum += own.a[m][j].item<double>() * activated(model, m, j, z);
  }
  return sum / static_cast<double>(own.w.size(1));
}

class EveryActivation : public ::testing::TestWithParam<const char*> {};

TEST_P(EveryActivation, OutputIsThatOfSection32) {
  for (const char* routing : {"adaptive", "top1"}) {
    const auto model = build_latent(std::string(R"(, "activation": ")") + GetParam() +
                                    R"(", "routing": ")" + routing + "\"");
    const Tensor x_B = randn({40, 1, 1, 6}, 1, torch::kFloat);
    const Tensor found = model->forward(x_B).logits;
    for (int64_t b = 0; b < 40; ++b) {
      const Tensor x = x_B[b][0][0];
      double wanted = 0.0, sum = 0.0, largest = -1e30, first = 0.0;
      for (int64_t m = 0; m < 3; ++m) {
        const double h = dot_product(model->moe->router->weight[m], x);
        if (h >= 0) wanted += expert(*model, m, x);
        sum += std::exp(h);
        if (h > largest) first = std::exp(h) * expert(*model, m, x);
        largest = std::max(largest, h);
      }
      if (routing == std::string("top1")) wanted = first / sum;
      EXPECT_NEAR(found[b][0].item<double>(), wanted, 2e-5 * (1.0 + std::abs(wanted)));
    }
  }
}

TEST_P(EveryActivation, TorchScriptEqualsIt) {
  const auto model = build_latent(std::string(R"(, "activation": ")") + GetParam() + "\"");
  torch::jit::Module script = to_torchscript(*model);
  for (const int64_t batch : {1, 33}) {
    const Tensor x = randn({batch, 1, 1, 6}, 5, torch::kFloat);
    expect_close(script.forward({x}).toTensor(), model->forward(x).logits, 1e-5);
  }
}

TEST_P(EveryActivation, KeepsItsOutputsWithoutExpertsThatTakeNothing) {
  const auto model = build_latent(std::string(R"(, "activation": ")") + GetParam() + "\"");
  {
    const torch::NoGradGuard no_grad;
    model->moe->router->weight[1].zero_().add_(-1e-3);
  }
  const Tensor x = randn({50, 1, 1, 6}, 1, torch::kFloat).abs();
  const Tensor before = model->forward(x).logits;
  apply_plan(*model, plan_pruning(*model, nullptr, "router-magnitude", KeepSpec::count(2)));
  EXPECT_EQ(model->moe->kept(), (std::vector<int64_t>{0, 2}));
  expect_close(model->forward(x).logits, before, 1e-6);
  const auto again = build_model(Value::from_json(model->config(), "model"), 9);
  load_state(*again, state_of(*model), "test");
  EXPECT_TRUE(torch::equal(again->forward(x).logits, model->forward(x).logits));
  EXPECT_EQ(model->weight_directions().at("router").sizes(), at::IntArrayRef({2, 1, 6}));
}

INSTANTIATE_TEST_SUITE_P(LatentMoE, EveryActivation, ::testing::Values("relu", "hermite"));

TEST(LatentMoE, BeginsOnTheSphereWithARouterOfZero) {
  const auto model = build_model(
      Document::from_text(R"({"name": "latent-moe", "max_bias": 0.5})", "model.json").root(), 3);
  const auto& own = *dynamic_cast<LatentMoE&>(*model).experts;
  expect_close(own.w.norm(2, {2}), torch::ones({8, 500}), 1e-5);
  EXPECT_TRUE(own.a.abs().eq(1).all().item<bool>());
  EXPECT_NEAR(own.a.mean().item<double>(), 0.0, 0.06);
  EXPECT_LE(own.b.abs().max().item<double>(), 0.5);
  EXPECT_NEAR(own.b.std().item<double>(), 0.5 / std::sqrt(3.0), 0.01);
  EXPECT_EQ(dynamic_cast<LatentMoE&>(*model).moe->router->weight.abs().sum().item<double>(), 0.0);
}

TEST(LatentMoE, TiesOfLogitsAreBrokenAtRandom) {
  const auto model = build_latent(R"(, "routing": "top1")");
  {
    const torch::NoGradGuard no_grad;
    model->moe->router->weight.zero_();
  }
  const ModelOutput found = model->forward(randn({3000, 1, 1, 6}, 1, torch::kFloat));
  const Routing& routing = found.routings[0].routing;
  const Tensor rows = routing.offsets.diff();
  EXPECT_GT(rows.min().item<int64_t>(), 900);
  expect_close(routing.gate, torch::full({3000}, 1.0 / 3), 1e-6);
}

TEST(LatentMoE, RefusesDegreesInTheWrongOrder) {
  EXPECT_THAT(test::usage_of([] { build_latent(R"(, "min_degree": 5, "max_degree": 4)"); }),
              ::testing::HasSubstr("min_degree 5 is above max_degree 4"));
}

}  // namespace
}  // namespace moesaic
