// SPDX-License-Identifier: Apache-2.0
#include "moesaic/nn/batch_shard.h"

#include "moesaic/nn/init.h"
#include "moesaic/nn/mlp_experts.h"
#include "moesaic/nn/moe_layer.h"
#include "moesaic/ops/route.h"
#include "support/tensors.h"

namespace moesaic {
namespace {

TEST(Dropout, DropsAFractionAndScalesTheRest) {
  const at::Tensor x = torch::ones({100, 1000});
  const at::Tensor y = nn::dropout(x, 0.25, nn::make_generator(1));
  const at::Tensor kept = y != 0;
  EXPECT_NEAR(kept.to(torch::kDouble).mean().item<double>(), 0.75, 0.01);
  EXPECT_TRUE(torch::equal(y, kept.to(torch::kFloat) / 0.75));
}

TEST(Dropout, DrawsFromItsGeneratorAloneOrNotAtAll) {
  const at::Tensor x = torch::ones({100});
  const at::Tensor y = nn::dropout(x, 0.5, nn::make_generator(1));
  torch::manual_seed(5);
  EXPECT_TRUE(torch::equal(nn::dropout(x, 0.5, nn::make_generator(1)), y));
  EXPECT_FALSE(torch::equal(nn::dropout(x, 0.5, nn::make_generator(2)), y));
  EXPECT_TRUE(nn::dropout(x, 0.5, {}).is_same(x));
  EXPECT_TRUE(nn::dropout(x, 0.0, nn::make_generator(1)).is_same(x));
}

// At a rate that drops nothing in so few numbers, the experts that drop are those that do not.
TEST(Dropout, ExpertsThatDropComputeWhatTheOthersDo) {
  for (const Activation activation : {Activation::gelu_tanh, Activation::relu, Activation::celu}) {
    nn::MlpExpertsOptions options{
        .num_experts = 3, .width = 4, .hidden = 6, .activation = activation, .dropout = 1e-9};
    nn::MlpExperts experts(options, nn::make_generator(1));
    for (at::Tensor& parameter : experts->parameters()) {
      parameter.detach().copy_(randn(parameter.sizes().vec(), 7, torch::kFloat));
    }
    const Routing routing =
        route(randn({9, 3}, 2, torch::kFloat), {.k = 2, .capacity = {.factor = 0.5}});
    const at::Tensor x = randn({9, 4}, 3, torch::kFloat);
    expect_close(nn::mixture(*experts, x, routing, nn::make_generator(4)).y_To,
                 nn::mixture(*experts, x, routing, {}).y_To, 1e-5);
  }
}

TEST(Dropout, ExpertsDropInTrainingOnly) {
  nn::MlpExperts experts(
      nn::MlpExpertsOptions{.num_experts = 3, .width = 4, .hidden = 6, .dropout = 0.5},
      nn::make_generator(1));
  const Routing routing = route(randn({9, 3}, 2, torch::kFloat), {.k = 2});
  const at::Tensor x = randn({9, 4}, 3, torch::kFloat);
  const at::Tensor plain = nn::mixture(*experts, x, routing, {}).y_To;
  EXPECT_FALSE(
      torch::allclose(nn::mixture(*experts, x, routing, nn::make_generator(4)).y_To, plain));
  experts->eval();
  EXPECT_TRUE(torch::equal(nn::mixture(*experts, x, routing, nn::make_generator(4)).y_To, plain));
}

}  // namespace
}  // namespace moesaic
