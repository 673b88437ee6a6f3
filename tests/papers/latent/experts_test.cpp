// SPDX-License-Identifier: Apache-2.0
#include "moesaic/papers/latent.h"

#include <cmath>
#include <vector>

#include "moesaic/nn/init.h"
#include "papers/latent/plain_experts.h"
#include "support/tensors.h"

namespace moesaic::nn {
namespace {

using at::Tensor;

ShallowExperts some_experts(bool hermite) {
  return ShallowExperts(LatentMoEConfig{.width = 4,
                                        .num_experts = 3,
                                        .num_neurons = 5,
                                        .activation = hermite ? "hermite" : "relu",
                                        .max_bias = 0.7},
                        make_generator(1));
}

class ShallowExpertsOf : public ::testing::TestWithParam<bool> {};

TEST_P(ShallowExpertsOf, RowsAreOutputsOfTheirExpertsAndZeroWithoutOne) {
  ShallowExperts experts = some_experts(GetParam());
  const Tensor x_Td = randn({6, 4}, 2, torch::kFloat);
  Routing routing;
  routing.offsets = torch::tensor({0, 2, 2, 5}, torch::kInt);
  routing.token = torch::tensor({1, 4, 0, 1, 5, 0}, torch::kInt);
  routing.gate = torch::tensor({1, 1, 1, 1, 1, 0}, torch::kFloat);
  routing.token_offsets = torch::tensor({0, 1, 3, 3, 3, 4, 5}, torch::kInt);
  routing.token_row = torch::tensor({2, 0, 3, 1, 4, 0}, torch::kInt);
  const Tensor found = expert_rows(*experts, x_Td, routing, {}).outputs;
  ASSERT_EQ(found.sizes(), at::IntArrayRef({6, 1}));
  const int64_t expert[] = {0, 0, 2, 2, 2}, token[] = {1, 4, 0, 1, 5};
  for (int64_t r = 0; r < 5; ++r) {
    const double wanted = testing::plain_output(*experts, expert[r], x_Td[token[r]]);
    EXPECT_NEAR(found[r][0].item<double>(), wanted, 1e-5 * (1 + std::abs(wanted)));
  }
  EXPECT_EQ(found[5].item<float>(), 0.0F);
}

TEST_P(ShallowExpertsOf, KeepsTheSlotsThatAreNamed) {
  ShallowExperts experts = some_experts(GetParam());
  const Tensor x_Rd = randn({7, 4}, 2, torch::kFloat);
  const Tensor last = experts->outputs_of(x_Rd, 2).detach();
  experts->keep({0, 2});
  EXPECT_EQ(experts->num_experts(), 2);
  expect_close(experts->outputs_of(x_Rd, 1).detach(), last, 0.0);
}

TEST_P(ShallowExpertsOf, BeginOnTheSphereWithSignsAndBiasesWithinTheirBound) {
  ShallowExperts experts = some_experts(GetParam());
  expect_close(experts->w.detach().norm(2, {2}), torch::ones({3, 5}), 1e-6);
  EXPECT_TRUE(experts->a.abs().eq(1).all().item<bool>());
  EXPECT_LE(experts->b.abs().max().item<double>(), 0.7);
  EXPECT_GT(experts->b.abs().max().item<double>(), 0.3);
  if (!GetParam()) return;
  EXPECT_TRUE(experts->hermite.slice(2, 0, 3).eq(0).all().item<bool>());
  EXPECT_TRUE(experts->hermite.slice(2, 3).abs().eq(1).all().item<bool>());
  EXPECT_TRUE(experts->hermite.slice(2, 3).eq(-1).any().item<bool>());
}

TEST_P(ShallowExpertsOf, NewNeuronsLeaveThoseThatAreThere) {
  ShallowExperts experts = some_experts(GetParam());
  const Tensor w = experts->w.detach().clone(), a = experts->a.detach().clone();
  const auto drawn = experts->draw_neurons(make_generator(9));
  EXPECT_TRUE(experts->w.equal(w));
  EXPECT_TRUE(experts->a.equal(a));
  expect_close(drawn.w.norm(2, {2}), torch::ones({3, 5}), 1e-6);
  EXPECT_TRUE(drawn.a.abs().eq(1).all().item<bool>());
  EXPECT_FALSE(torch::allclose(drawn.w, w));
  EXPECT_TRUE(experts->draw_neurons(make_generator(9)).w.equal(drawn.w));
}

INSTANTIATE_TEST_SUITE_P(ShallowExperts, ShallowExpertsOf, ::testing::Bool());

TEST(ShallowExpertsCost, IsThatOfBothLayers) {
  const ShallowExperts experts = some_experts(false);
  EXPECT_EQ(experts->flops_per_row(), 2 * (5 * 4 + 5));
  EXPECT_EQ(experts->num_outputs(), 1);
}

Routing route(const std::string& routing, const Tensor& router_Kd, const Tensor& x_Td,
              const std::vector<int64_t>& kept = {}) {
  const Router router(latent_router_options(x_Td.size(1), router_Kd.size(0), routing, kept),
                      make_generator(1));
  const torch::NoGradGuard no_grad;
  router->weight.copy_(router_Kd);
  return router->forward(x_Td).routing;
}

TEST(LatentRouterOptions, NameTheRoutingTheyWereMadeFor) {
  for (const char* routing : {kTopOne, kEveryAboveZero}) {
    EXPECT_EQ(latent_routing_name(latent_router_options(5, 3, routing, {0, 2})), routing);
    EXPECT_EQ(latent_router_options(5, 3, routing, {0, 2}).rule.kept, (std::vector<int64_t>{0, 2}));
  }
}

TEST(LatentRouterOptions, TopOneIsTheLargestLogitWithItsSoftmax) {
  const Tensor router = randn({3, 5}, 1, torch::kFloat), x = randn({50, 5}, 2, torch::kFloat);
  const Tensor share = x.mm(router.t()).softmax(1);
  const Tensor weight_TK = combine_weights(route(kTopOne, router, x));
  const Tensor largest = share.ge(share.amax(1, true)).to(torch::kFloat);
  expect_close(weight_TK, share * largest, 1e-6);
}

TEST(LatentRouterOptions, TopOneBreaksTiesAtRandomAndTheirGatesAreEqual) {
  const Tensor weight_TK =
      combine_weights(route(kTopOne, torch::zeros({4, 5}), randn({4000, 5}, 2, torch::kFloat)));
  const Tensor chosen = weight_TK.gt(0);
  EXPECT_TRUE(chosen.sum(1).eq(1).all().item<bool>());
  EXPECT_GT(chosen.sum(0).min().item<int64_t>(), 850);
  expect_close(weight_TK.masked_select(chosen), torch::full({4000}, 0.25), 0.0);
}

TEST(LatentRouterOptions, AdaptiveTakesEveryLogitFromZeroOnWithTheGateOne) {
  const Tensor router = randn({3, 5}, 1, torch::kFloat);
  Tensor x = randn({50, 5}, 2, torch::kFloat);
  x[0].zero_();
  const Tensor weight_TK = combine_weights(route(kEveryAboveZero, router, x));
  expect_close(weight_TK, x.mm(router.t()).ge(0).to(torch::kFloat), 0.0);
  EXPECT_EQ(weight_TK[0].sum().item<float>(), 3.0F);
}

TEST(LatentRouterOptions, RemovedExpertsTakeNothing) {
  const Tensor router = randn({3, 5}, 1, torch::kFloat), x = randn({50, 5}, 2, torch::kFloat);
  const Tensor logits = x.mm(router.t()).index_select(1, torch::tensor({0, 2}));
  // Top one: the best of those that are left takes the sample.
  const Tensor top = combine_weights(route(kTopOne, router, x, {0, 2}));
  EXPECT_TRUE(top.gt(0).eq(logits.ge(logits.amax(1, true))).all().item<bool>());
  const Tensor adaptive = combine_weights(route(kEveryAboveZero, router, x, {0, 2}));
  expect_close(adaptive, logits.ge(0).to(torch::kFloat), 0.0);
}

}  // namespace

}  // namespace moesaic::nn
