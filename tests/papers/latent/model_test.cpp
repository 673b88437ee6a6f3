// SPDX-License-Identifier: Apache-2.0
#include "moesaic/papers/latent.h"

#include <fmt/format.h>
#include <torch/script.h>

#include <cmath>

#include "base/support.h"
#include "moesaic/export/formats.h"
#include "moesaic/prune/plan.h"
#include "papers/latent/plain_experts.h"
#include "prune/plan_networks.h"
#include "support/matchers.h"
#include "support/models.h"
#include "support/tensors.h"

namespace moesaic {
namespace {

using at::Tensor;

std::shared_ptr<LatentMoE> build_latent(const std::string& settings = "") {
  const auto model = std::dynamic_pointer_cast<LatentMoE>(testing::model_from(
      R"({"name": "latent-moe", "width": 6, "num_experts": 3, "num_neurons": 5)" + settings + "}",
      3));
  model->moe->router->weight.detach().copy_(randn({3, 6}, 7, torch::kFloat));
  return model;
}

class EveryActivation : public ::testing::TestWithParam<const char*> {
 protected:
  const std::string setting_ = fmt::format(R"(, "activation": "{}")", GetParam());
};

TEST_P(EveryActivation, OutputIsThatOfSection32) {
  for (const char* routing : {"adaptive", "top1"}) {
    const auto model = build_latent(setting_ + fmt::format(R"(, "routing": "{}")", routing));
    const Tensor x_B = randn({40, 1, 1, 6}, 1, torch::kFloat);
    const Tensor found = model->forward(x_B).logits;
    for (int64_t b = 0; b < 40; ++b) {
      const Tensor x = x_B[b][0][0];
      double wanted = 0.0, sum = 0.0, largest = -1e30, first = 0.0;
      for (int64_t m = 0; m < 3; ++m) {
        const double h = testing::dot_product(model->moe->router->weight[m], x);
        const double f = testing::plain_output(*model->experts, m, x);
        if (h >= 0) wanted += f;
        sum += std::exp(h);
        if (h > largest) first = std::exp(h) * f;
        largest = std::max(largest, h);
      }
      if (routing == std::string("top1")) wanted = first / sum;
      EXPECT_NEAR(found[b][0].item<double>(), wanted, 2e-5 * (1.0 + std::abs(wanted)));
    }
  }
}

TEST_P(EveryActivation, TorchScriptEqualsIt) {
  const auto model = build_latent(setting_);
  torch::jit::Module script = to_torchscript(*model);
  for (const int64_t batch : {1, 33}) {
    const Tensor x = randn({batch, 1, 1, 6}, 5, torch::kFloat);
    expect_close(script.forward({x}).toTensor(), model->forward(x).logits, 1e-5);
  }
}

TEST_P(EveryActivation, KeepsItsOutputsWithoutExpertsThatTakeNothing) {
  const auto model = build_latent(setting_);
  model->moe->router->weight.detach()[1].fill_(-1e-3);
  const Tensor x = randn({50, 1, 1, 6}, 1, torch::kFloat).abs();
  const Tensor before = model->forward(x).logits;
  apply_plan(*model, plan_pruning(*model, nullptr, "router-magnitude", KeepSpec::count(2)));
  EXPECT_EQ(model->moe->kept(), (std::vector<int64_t>{0, 2}));
  expect_close(model->forward(x).logits, before, 1e-6);
  EXPECT_TRUE(torch::equal(testing::rebuilt(*model)->forward(x).logits, model->forward(x).logits));
  EXPECT_EQ(model->weight_directions().at("router").sizes(), at::IntArrayRef({2, 1, 6}));
}

INSTANTIATE_TEST_SUITE_P(LatentMoE, EveryActivation, ::testing::Values("relu", "hermite"));

TEST(LatentMoE, BeginsOnTheSphereWithARouterOfZero) {
  const auto model = testing::model_from(R"({"name": "latent-moe", "max_bias": 0.5})", 3);
  const auto& latent = dynamic_cast<LatentMoE&>(*model);
  const nn::ShallowExpertsImpl& own = *latent.experts;
  expect_close(own.w.norm(2, {2}), torch::ones({8, 500}), 1e-5);
  EXPECT_TRUE(own.a.abs().eq(1).all().item<bool>());
  EXPECT_NEAR(own.a.mean().item<double>(), 0.0, 0.06);
  EXPECT_LE(own.b.abs().max().item<double>(), 0.5);
  EXPECT_NEAR(own.b.std().item<double>(), 0.5 / std::sqrt(3.0), 0.01);
  EXPECT_EQ(latent.moe->router->weight.abs().sum().item<double>(), 0.0);
}

TEST(LatentMoE, TiesOfLogitsAreBrokenAtRandom) {
  const auto model = build_latent(R"(, "routing": "top1")");
  model->moe->router->weight.detach().zero_();
  const ModelOutput found = model->forward(randn({3000, 1, 1, 6}, 1, torch::kFloat));
  const Routing& routing = found.routings[0].routing;
  EXPECT_GT(routing.offsets.diff().min().item<int64_t>(), 900);
  expect_close(routing.gate, torch::full({3000}, 1.0 / 3), 1e-6);
}

TEST(LatentMoE, RefusesDegreesInTheWrongOrder) {
  EXPECT_THAT(test::usage_of([] { build_latent(R"(, "min_degree": 5, "max_degree": 4)"); }),
              HasSubstr("min_degree 5 is above max_degree 4"));
}

}  // namespace
}  // namespace moesaic
