// SPDX-License-Identifier: Apache-2.0
#include "moesaic/nn/moe_layer.h"

#include "moesaic/base/error.h"
#include "moesaic/nn/init.h"
#include "moesaic/nn/mlp_experts.h"
#include "moesaic/ops/routing.h"
#include "moesaic/papers/clusters.h"
#include "ops/route_reference.h"
#include "support/tensors.h"

namespace moesaic {
namespace {

nn::MoELayerOptions small_layer(const RouteOptions& rule = RouteOptions{.k = 2}) {
  return {.width = 6, .hidden = 10, .num_experts = 5, .rule = rule};
}

testing::RouteReference reference_of(const at::Tensor& logits, const RouteOptions& rule) {
  if (rule.is_token_choice()) return testing::token_choice_reference(logits, rule);
  if (rule.is_expert_choice()) return testing::expert_choice_reference(logits, rule);
  return testing::adaptive_reference(logits, rule.threshold, rule.kept);
}

/// The layer as plain matrix products: every expert on every token, weighted with the reference
/// routing.
at::Tensor dense_reference(const nn::MoELayer& layer, const at::Tensor& x,
                           const std::vector<int64_t>& ids, const RouteOptions& rule) {
  const auto routing = reference_of(layer->router->logits(x).detach(), rule);
  at::Tensor y = torch::zeros_like(x);
  for (size_t slot = 0; slot < ids.size(); ++slot) {
    const auto* e = layer->experts->as<nn::MlpExperts>();
    const auto s = static_cast<int64_t>(slot);
    const at::Tensor out =
        torch::matmul(at::gelu(torch::matmul(x, e->w1[s]) + e->b1[s], "tanh"), e->w2[s]) + e->b2[s];
    for (int64_t t = 0; t < x.size(0); ++t) y[t] += routing.weight[t][ids[slot]] * out[t];
  }
  return y;
}

TEST(MoELayer, EqualsEveryExpertOnEveryTokenWeightedByTheGates) {
  const torch::NoGradGuard no_grad;
  for (const RouteOptions& rule :
       {RouteOptions{.gate = Gate::softmax_all, .capacity = {.factor = 1.0}},
        RouteOptions{.gate = Gate::softmax_selected, .capacity = {.factor = 1.0}},
        RouteOptions{.kind = RoutingKind::expert_choice, .l = 3, .gate = Gate::softmax_selected},
        RouteOptions{.kind = RoutingKind::threshold, .threshold = 0.2},
        RouteOptions{.kind = RoutingKind::expert_choice, .capacity = {.factor = 0.9}}}) {
    nn::MoELayer layer(small_layer(rule), 3);
    const at::Tensor x = randn({23, 6}, 1, torch::kFloat);
    expect_close(layer->forward(x).y_Td, dense_reference(layer, x, {0, 1, 2, 3, 4}, rule), 1e-6);
  }
}

TEST(MoELayer, KeepingExpertsEqualsMaskingTheOthers) {
  const torch::NoGradGuard no_grad;
  for (RouteOptions rule :
       {RouteOptions{.k = 2}, RouteOptions{.kind = RoutingKind::threshold, .threshold = 0.2},
        RouteOptions{.kind = RoutingKind::expert_choice, .l = 4, .gate = Gate::softmax_selected}}) {
    nn::MoELayer layer(small_layer(rule), 3);
    const at::Tensor x = randn({40, 6}, 2, torch::kFloat);
    for (const auto& kept : {std::vector<int64_t>{1, 3}, {3}}) {
      rule.kept = kept;
      layer->keep_experts(kept);
      EXPECT_EQ(layer->kept(), kept);
      EXPECT_EQ(layer->experts->as<nn::MlpExperts>()->w1.size(0), std::ssize(kept));
      EXPECT_EQ(layer->router->weight.size(0), 5);
      expect_close(layer->forward(x).y_Td, dense_reference(layer, x, kept, rule), 1e-6);
    }
  }
}

TEST(MoELayer, RefusesToKeepWhatIsNotThere) {
  nn::MoELayer layer(small_layer(), 3);
  EXPECT_THROW(layer->keep_experts({}), Error);
  EXPECT_THROW(layer->keep_experts({5}), Error);
  EXPECT_THROW(layer->keep_experts({2, 1}), Error);
  layer->keep_experts({1, 2});
  EXPECT_THROW(layer->keep_experts({0}), Error);
}

// A layer takes experts of any kind, whose inputs may have another shape than the router's.
TEST(MoELayer, RoutesInputsThatItsRouterDoesNotSee) {
  nn::FilterExperts filters(
      ClusterMoEConfig{.num_patches = 2, .width = 4, .num_filters = 6, .init_scale = 1.0}, 3,
      nn::make_generator(1));
  nn::MoELayer layer(nn::RouterOptions{.width = 5, .num_experts = 3, .rule = RouteOptions{.k = 2}},
                     filters.ptr(), nn::make_generator(2));
  EXPECT_EQ(layer->named_parameters().size(), 3U);
  EXPECT_TRUE(layer->named_parameters().contains("experts.w"));
  const at::Tensor seen = randn({9, 5}, 3, torch::kFloat), x = randn({9, 2, 4}, 4, torch::kFloat);
  const nn::MoEOutput out = layer->forward(seen, x, {});
  EXPECT_EQ(out.y_Td.sizes(), (std::vector<int64_t>{9, 2}));
  EXPECT_TRUE(torch::equal(out.logits_TE, layer->router->logits(seen)));
  EXPECT_TRUE(torch::equal(out.y_Td, nn::mixture(*filters, x, out.routing, {}).y_To));
  EXPECT_THROW(nn::MoELayer(nn::RouterOptions{.width = 5, .num_experts = 4}, filters.ptr(),
                            nn::make_generator(2)),
               Error);
}

TEST(MoELayer, TheSeedDecidesTheWeights) {
  torch::manual_seed(1);
  nn::MoELayer a(small_layer(), 3);
  torch::manual_seed(2);
  nn::MoELayer b(small_layer(), 3), c(small_layer(), 4);
  const auto w1 = [](const nn::MoELayer& of) { return of->experts->as<nn::MlpExperts>()->w1; };
  EXPECT_TRUE(torch::equal(w1(a), w1(b)));
  EXPECT_TRUE(torch::equal(a->router->weight, b->router->weight));
  EXPECT_FALSE(torch::equal(w1(a), w1(c)));
}

/// The mean outputs of the five experts, made up.
at::Tensor some_means() {
  return randn({5, 6}, 77, torch::kFloat);
}

TEST(MoELayer, ReplacementsTakeTheGatesOfRemovedExperts) {
  for (const RouteOptions& rule :
       {RouteOptions{.k = 2}, RouteOptions{.k = 2, .capacity = {.factor = 0.7}},
        RouteOptions{.kind = RoutingKind::expert_choice,
        .gate = Gate::softmax_selected,
        .capacity = {.factor = 1.5}}}) {
    const torch::NoGradGuard no_grad;
    nn::MoELayer whole(small_layer(rule), 3), layer(small_layer(rule), 3);
    const at::Tensor x = randn({9, 6}, 5, torch::kFloat), means = some_means();
    layer->keep_experts({0, 3}, means);
    const at::Tensor weights = combine_weights(whole->forward(x).routing);
    nn::MoELayer bare(small_layer(rule), 3);
    bare->keep_experts({0, 3});
    at::Tensor wanted = bare->forward(x).y_Td;
    double left = 0.0;
    for (const int64_t e : {1, 2, 4}) {
      for (int64_t t = 0; t < 9; ++t) {
        wanted[t] += weights[t][e] * means[e];
        left += weights[t][e].item<double>();
      }
    }
    EXPECT_GT(left, 0.1);
    expect_close(layer->forward(x).y_Td, wanted, 1e-5);
  }
}

TEST(MoELayer, ReplacementsOfTwoPruningsAreThoseOfOne) {
  nn::MoELayer once(small_layer(), 3), twice(small_layer(), 3);
  const at::Tensor means = some_means();
  once->keep_experts({0, 3}, means);
  twice->keep_experts({0, 1, 3}, means);
  at::Tensor later = means + 1;
  later[1].copy_(means[1]);  // Of the one that goes now; the others' means are from before.
  twice->keep_experts({0, 3}, later);
  EXPECT_EQ(twice->removed(), (std::vector<int64_t>{1, 2, 4}));
  EXPECT_TRUE(at::equal(once->replacement_outputs, twice->replacement_outputs));
  EXPECT_TRUE(once->named_parameters().contains("stand_in"));
  EXPECT_THROW(twice->keep_experts({0}), Error) << "the others left their means";
}

TEST(MoELayer, ReplacementsAreTrained) {
  nn::MoELayer layer(small_layer(), 3);
  layer->keep_experts({0, 3}, some_means());
  layer->forward(randn({9, 6}, 5, torch::kFloat)).y_Td.square().sum().backward();
  EXPECT_GT(layer->replacement_outputs.grad().abs().sum().item<double>(), 0.0);
}

}  // namespace
}  // namespace moesaic
