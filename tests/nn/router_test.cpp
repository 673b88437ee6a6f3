// SPDX-License-Identifier: Apache-2.0
#include "moesaic/nn/router.h"

#include "moesaic/nn/init.h"
#include "ops/route_reference.h"
#include "support/tensors.h"

namespace moesaic {
namespace {

using testing::expect_same_routing;

nn::Router noisy_router(double scale, at::ScalarType type = torch::kFloat) {
  nn::Router router(nn::RouterOptions{.width = 6, .num_experts = 4, .noise = {.scale = scale}},
                    nn::make_generator(1));
  router->to(type);
  return router;
}

/// Of each type that logits have: that of the router's weight.
class RouterNoiseOf : public ::testing::TestWithParam<at::ScalarType> {};
INSTANTIATE_TEST_SUITE_P(Router, RouterNoiseOf, ::testing::Values(torch::kFloat, torch::kBFloat16),
                         [](const auto& type) { return c10::toString(type.param); });

TEST_P(RouterNoiseOf, IsDrawnFromTheGeneratorAlone) {
  const nn::Router router = noisy_router(8.0, GetParam());
  const at::Tensor x = randn({50, 6}, 2, torch::kFloat);
  torch::manual_seed(1);
  const nn::RoutingRecord a = router->forward(x, nn::make_generator(5));
  torch::manual_seed(2);
  const nn::RoutingRecord b = router->forward(x, nn::make_generator(5));
  const nn::RoutingRecord c = router->forward(x, nn::make_generator(6));
  EXPECT_EQ(a.noisy_logits_TE.scalar_type(), GetParam());
  EXPECT_TRUE(torch::equal(a.logits_TE, router->logits(x)));
  EXPECT_TRUE(torch::equal(a.noisy_logits_TE, b.noisy_logits_TE));
  EXPECT_FALSE(torch::equal(a.noisy_logits_TE, c.noisy_logits_TE));
  EXPECT_NEAR((a.noisy_logits_TE - a.logits_TE).std().item<double>(), 2.0, 0.3);  // 8 / E
  expect_same_routing(a.routing, route(a.noisy_logits_TE, RouteOptions{.k = 2}));
}

TEST_P(RouterNoiseOf, LetsTheGradientOfLogitsPass) {
  const nn::Router router = noisy_router(8.0, GetParam());
  const at::Tensor x = randn({50, 6}, 2, torch::kFloat).requires_grad_();
  const at::Tensor of_logits = randn({50, 4}, 3, torch::kFloat).to(GetParam());
  const nn::RoutingRecord record = router->forward(x, nn::make_generator(5));
  const auto gradients = [&](const at::Tensor& logits_TE) {
    return torch::autograd::grad({logits_TE}, {x, router->weight}, {of_logits},
                                 /*retain_graph=*/true);
  };
  const auto with = gradients(record.noisy_logits_TE), without = gradients(record.logits_TE);
  for (const size_t i : {0, 1}) {
    EXPECT_TRUE(torch::equal(with[i], without[i])) << i;
    EXPECT_GT(with[i].abs().sum().item<double>(), 0.0) << i;
  }
}

TEST(Router, IsDeterministicWithoutGeneratorOrNoise) {
  const at::Tensor x = randn({50, 6}, 2, torch::kFloat);
  for (const double scale : {0.0, 8.0}) {
    const nn::Router router = noisy_router(scale);
    const at::Generator random = scale > 0 ? at::Generator() : nn::make_generator(3);
    const nn::RoutingRecord out = router->forward(x, random);
    EXPECT_TRUE(out.noisy_logits_TE.is_same(out.logits_TE));
    expect_same_routing(out.routing, route(out.logits_TE, RouteOptions{.k = 2}));
  }
}

TEST(Router, DrawsNoiseWithoutAGeneratorWhereItHasASeed) {
  for (const int64_t members : {1, 2}) {
    nn::RouterOptions options{.width = 6, .num_experts = 4, .num_members = members};
    options.noise.scale = 8.0;
    options.evaluation_seed = 5;
    nn::Router router(options, nn::make_generator(1));
    const at::Tensor x = randn({50, 6}, 2, torch::kFloat);
    const at::Tensor noisy = router->forward(x).noisy_logits_TE;
    EXPECT_FALSE(torch::equal(noisy, router->logits(x)));
    EXPECT_TRUE(torch::equal(router->forward(x).noisy_logits_TE, noisy));
    EXPECT_FALSE(torch::equal(router->forward(x, nn::make_generator(5)).noisy_logits_TE, noisy));
    // A token's noise goes by its number, whatever else is computed beside it.
    router->set_first_token_index(20);
    const at::Tensor rest = router->forward(x.slice(0, 20)).noisy_logits_TE;
    EXPECT_TRUE(torch::allclose(rest, noisy.slice(0, 20), 0.0, 1e-5));
    router->set_first_token_index(0);
    const at::Tensor again = router->forward(x.slice(0, 20)).noisy_logits_TE;
    EXPECT_FALSE(torch::allclose(again, rest, 0.0, 0.1));
  }
}

TEST_P(RouterNoiseOf, EvaluationHasTheDeviationOfTraining) {
  for (const auto kind : {NoiseKind::gaussian, NoiseKind::uniform}) {
    const nn::RouterOptions options{
        .width = 6, .num_experts = 4, .noise = {kind, 3.0}, .evaluation_seed = 5};
    nn::Router router(options, nn::make_generator(1));
    router->to(GetParam());
    const at::Tensor x = randn({5000, 6}, 2, torch::kFloat);
    const at::Tensor noise = router->forward(x).noisy_logits_TE.to(torch::kDouble) -
                             router->logits(x).to(torch::kDouble);
    const bool gaussian = kind == NoiseKind::gaussian;
    EXPECT_NEAR(noise.mean().item<double>(), gaussian ? 0.0 : 1.5, 0.03);
    EXPECT_NEAR(noise.std().item<double>(), gaussian ? 3.0 / 4 : 3.0 / std::sqrt(12.0), 0.03);
  }
}

TEST(Router, RecordsAllThatTheLossesWantToKnow) {
  nn::RouterOptions options{.width = 6, .num_experts = 4, .num_members = 2};
  options.rule = RouteOptions{.k = 1, .group_size = 10, .kept = {0, 3}};
  options.noise.scale = 8.0;
  nn::Router router(options, nn::make_generator(1));
  const at::Tensor x = randn({50, 6}, 2, torch::kFloat);
  const nn::RoutingRecord noisy = router->forward(x, nn::make_generator(5));
  EXPECT_EQ(noisy.noise_std, 4.0);  // over the experts of one member
  EXPECT_EQ(noisy.kept, (std::vector<int64_t>{0, 3}));
  EXPECT_EQ(noisy.group_size, 10);
  EXPECT_EQ(noisy.num_members, 2);
  EXPECT_FALSE(noisy.is_rerouted);
  EXPECT_EQ(router->forward(x).noise_std, 0.0);
  options.num_members = 1;
  options.noise.kind = NoiseKind::uniform;
  options.rule = RouteOptions{.k = 1, .kept = {0, 3}, .pruned = PrunedSelection::reroute};
  const nn::Router other(options, nn::make_generator(1));
  const nn::RoutingRecord uniform = other->forward(x, nn::make_generator(5));
  EXPECT_FALSE(uniform.noisy_logits_TE.is_same(uniform.logits_TE));
  EXPECT_EQ(uniform.noise_std, 0.0);
  EXPECT_TRUE(uniform.is_rerouted);
}

/// Of tokens that eight experts choose.
double rows_of_chosen(RouteOptions rule, int64_t tokens_per_image) {
  rule.kind = RoutingKind::expert_choice;
  return nn::rows_per_token(rule, tokens_per_image, 8);
}

TEST(RouteOptions, CountsRowsOfATokenBeforeDrops) {
  EXPECT_EQ(nn::rows_per_token(RouteOptions{.k = 3, .capacity = {.factor = 0.1}}, 10, 8), 3.0);
  EXPECT_EQ(rows_of_chosen({.l = 5}, 10), 4.0);
  EXPECT_EQ(rows_of_chosen({.l = 5, .group_size = 20}, 40), 2.0);
  EXPECT_EQ(rows_of_chosen({.l = 5, .group_size = 90}, 40), 1.0);
  EXPECT_EQ(rows_of_chosen({.capacity = {.factor = 2.0}}, 32), 2.0);
  EXPECT_EQ(RouteOptions{.k = 3}.num_selected_experts(), 3);
  EXPECT_EQ(RouteOptions{.kind = RoutingKind::expert_choice}.num_selected_experts(), 0);
  EXPECT_EQ(nn::rows_per_token(RouteOptions{.kind = RoutingKind::threshold}, 10, 8), 8.0);
  EXPECT_EQ(RouteOptions{.kind = RoutingKind::threshold}.num_selected_experts(), 0);
}

TEST(RouteOptions, ATokenAloneInItsImageIsRoutedWithThoseOfOthers) {
  EXPECT_EQ(rows_of_chosen({.l = 5, .group_size = 20}, 1), 2.0);
  EXPECT_EQ(rows_of_chosen({.capacity = {.factor = 1.5}}, 1), 1.5);
  EXPECT_EQ(rows_of_chosen({.capacity = {.factor = 9.0}}, 1), 8.0);
}

TEST(RouteOptions, CountsRowsOfCapacityBuffers) {
  const auto rows = [](const RouteOptions& rule) {
    return nn::capacity_rows_per_token(rule, 65, 8);
  };
  // 520 * 2 * 1.5 / 8 = 195 rows of an expert, raised to 196; a group of 3 has at most 3.
  const RouteOptions factor{.k = 2, .capacity = {.factor = 1.5}, .group_size = 520};
  EXPECT_EQ(rows(factor), 196.0 * 8 / 520);
  EXPECT_EQ(rows(RouteOptions{.k = 2, .capacity = {.factor = 1.5}, .group_size = 3}), 8.0);
  EXPECT_EQ(rows(RouteOptions{.k = 2, .capacity = {.factor = 1.5}}), 3.0);
  EXPECT_EQ(rows(RouteOptions{.k = 2, .capacity = {.factor = 5.0}}), 8.0);
  EXPECT_EQ(rows(RouteOptions{.k = 2, .capacity = {.rows = 10}, .group_size = 40}), 2.0);
  EXPECT_EQ(rows(RouteOptions{.k = 2, .capacity = {.rows = 13}}), 1.6);
  EXPECT_EQ(rows(RouteOptions{.k = 2, .group_size = 520}), 2.0) << "nothing is dropped";
  EXPECT_EQ(rows(RouteOptions{.kind = RoutingKind::expert_choice, .l = 13}), 1.6);
  EXPECT_EQ(rows(RouteOptions{.kind = RoutingKind::threshold}), 8.0);
}

TEST(RouteOptions, AThresholdReroutesNothing) {
  RouteOptions options{.kept = {0}, .pruned = PrunedSelection::reroute};
  EXPECT_TRUE(options.is_rerouted());
  options.kind = RoutingKind::threshold;
  EXPECT_FALSE(options.is_rerouted());
}

TEST(RouteOptions, KnowsWhetherTokensCompete) {
  EXPECT_FALSE(nn::is_batch_dependent(RouteOptions{}));
  EXPECT_TRUE(nn::is_batch_dependent(RouteOptions{.capacity = {.factor = 1.0}}));
  EXPECT_TRUE(nn::is_batch_dependent(RouteOptions{.kind = RoutingKind::expert_choice, .l = 1}));
  EXPECT_FALSE(nn::is_batch_dependent(RouteOptions{.kind = RoutingKind::threshold}));
}

}  // namespace
}  // namespace moesaic
