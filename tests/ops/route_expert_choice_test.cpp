// SPDX-License-Identifier: Apache-2.0
#include "moesaic/ops/route.h"

#include <limits>

#include "base/support.h"
#include "ops/route_reference.h"
#include "support/tensors.h"

namespace moesaic {
namespace {

using testing::expect_routing;
using testing::expect_same_routing;
using testing::expect_same_shapes;
using testing::expert_choice_reference;

constexpr Gate kExpertGates[] = {Gate::softmax_selected, Gate::softmax_tokens, Gate::softmax_all,
                                 Gate::one};

void expect_choice(const at::Tensor& logits, RouteOptions options) {
  options.kind = RoutingKind::expert_choice;
  expect_routing(route(logits, options), expert_choice_reference(logits, options), options.kept);
}

TEST(RouteExpertChoice, EqualsPlainLoopsOverASweep) {
  uint64_t seed = 100;
  for (const Gate gate : kExpertGates) {
    for (const int64_t experts : {1, 3, 8}) {
      for (const int64_t rows : {1, 2, 5}) {
        const at::Tensor logits = randn({30, experts}, ++seed, torch::kFloat);
        expect_choice(logits, {.l = rows, .gate = gate, .group_size = 5});
        expect_choice(logits, {.l = rows, .gate = gate, .group_size = 25});
        expect_choice(logits.to(torch::kDouble), {.l = rows, .gate = gate});
      }
      for (const double factor : {0.3, 1.0, 2.5, 100.0}) {
        const at::Tensor logits = randn({75, experts}, ++seed, torch::kFloat);
        expect_choice(logits, {.gate = gate, .capacity = {.factor = factor}, .group_size = 32});
        expect_choice(logits, {.gate = gate, .capacity = {.factor = factor}});
      }
    }
  }
}

TEST(RouteExpertChoice, EqualsPlainLoopsOnLongGroups) {
  for (const Gate gate : kExpertGates) {
    const at::Tensor logits = randn({3000, 4}, 7, torch::kFloat);
    expect_choice(logits, {.l = 600, .gate = gate, .group_size = 1500});
    expect_choice(logits, {.gate = gate, .capacity = {.factor = 1.0}});
  }
}

TEST(RouteExpertChoice, GradientsInFloatAreThoseInDouble) {
  uint64_t seed = 40;
  for (const Gate gate : kExpertGates) {
    if (gate == Gate::one) continue;
    for (const int64_t group : {0, 300}) {
      for (const auto& kept : {std::vector<int64_t>{}, std::vector<int64_t>{1, 3}}) {
        const RouteOptions options{.kind = RoutingKind::expert_choice,
                                   .gate = gate,
                                   .capacity = {.factor = 0.7},
                                   .group_size = group,
                                   .kept = kept};
        const at::Tensor plain = randn({600, 5}, ++seed, torch::kFloat);
        const auto gradient_in = [&](at::ScalarType type) {
          const at::Tensor logits = plain.to(type).clone().set_requires_grad(true);
          const Routing routing = route(logits, options);
          routing.gate.backward(randn({routing.max_rows()}, 7, torch::kFloat).to(type));
          return logits.grad().to(torch::kDouble);
        };
        expect_close(gradient_in(torch::kFloat), gradient_in(torch::kDouble), 1e-5);
      }
    }
  }
}

TEST(RouteExpertChoice, OneExpertWithAllTokensIsThePlainNetwork) {
  const at::Tensor logits = randn({24, 1}, 3, torch::kFloat);
  const Routing routing = route(
      logits, {.kind = RoutingKind::expert_choice, .l = 8, .gate = Gate::one, .group_size = 8});
  EXPECT_TRUE(torch::equal(routing.token, torch::arange(24, torch::kInt)));
  EXPECT_TRUE(torch::equal(routing.token_row, torch::arange(24, torch::kInt)));
  EXPECT_TRUE(torch::equal(routing.gate, torch::ones({24})));
  expect_choice(logits, {.l = 8, .gate = Gate::softmax_selected, .group_size = 8});
}

TEST(RouteExpertChoice, TiesGoToTheEarlierToken) {
  at::Tensor logits = torch::zeros({12, 3});
  logits[7][1] = 1.0;
  logits[2][2] = -0.0;
  for (const Gate gate : kExpertGates) {
    for (const int64_t rows : {1, 3, 6}) {
      expect_choice(logits, {.l = rows, .gate = gate});
      expect_choice(logits, {.l = rows, .gate = gate, .group_size = 6});
    }
  }
  const Routing routing =
      route(logits, {.kind = RoutingKind::expert_choice, .l = 2, .gate = Gate::softmax_selected});
  EXPECT_TRUE(torch::equal(routing.token, torch::tensor({0, 1, 0, 7, 0, 1}, torch::kInt)));
}

TEST(RouteExpertChoice, ATokenThatNobodySelectsGetsNoRow) {
  at::Tensor logits = randn({10, 3}, 5, torch::kFloat);
  logits[4].fill_(-30.0);
  const Routing routing =
      route(logits, {.kind = RoutingKind::expert_choice, .l = 4, .gate = Gate::softmax_selected});
  EXPECT_EQ((routing.token_offsets[5] - routing.token_offsets[4]).item<int64_t>(), 0);
  expect_choice(logits, {.l = 4, .gate = Gate::softmax_selected});
}

/// Three of six experts, with as many tokens as are told or as a capacity has room for.
RouteOptions three_of_six(Gate gate, double factor, PrunedSelection pruned) {
  return {.kind = RoutingKind::expert_choice,
          .l = factor > 0 ? 0 : 3,
          .gate = gate,
          .capacity = {.factor = factor},
          .group_size = 20,
          .kept = {1, 2, 5},
          .pruned = pruned};
}

TEST(RouteExpertChoice, ReroutingIsThePrunedRouterAlone) {
  const at::Tensor logits = randn({40, 6}, 8, torch::kFloat);
  for (const Gate gate : kExpertGates) {
    for (const double factor : {0.0, 0.8}) {
      RouteOptions options = three_of_six(gate, factor, PrunedSelection::reroute);
      const Routing routing = route(logits, options);
      expect_routing(routing, expert_choice_reference(logits, options), options.kept);
      options.kept = {};
      expect_same_routing(routing,
                          route(logits.index_select(1, torch::tensor({1, 2, 5})), options));
    }
  }
}

TEST(RouteExpertChoice, PruningLeavesTheOtherExpertsAlone) {
  const at::Tensor logits = randn({40, 6}, 8, torch::kFloat);
  for (const Gate gate : kExpertGates) {
    for (const double factor : {0.0, 0.8}) {
      RouteOptions options = three_of_six(gate, factor, PrunedSelection::zero);
      const at::Tensor pruned = combine_weights(route(logits, options));
      expect_choice(logits, options);
      options.kept = {};
      const at::Tensor whole = combine_weights(route(logits, options));
      EXPECT_TRUE(torch::equal(pruned, whole.index_select(1, torch::tensor({1, 2, 5}))));
    }
  }
}

TEST(RouteExpertChoice, CapacitiesRoundAndRiseAsTold) {
  uint64_t seed = 900;
  for (const Gate gate : kExpertGates) {
    for (const auto rounding : {CapacityRounding::ceil, CapacityRounding::round}) {
      for (const int64_t multiple : {1, 3}) {
        const CapacityRule capacity{.factor = 0.7, .rounding = rounding, .multiple_of = multiple};
        expect_choice(randn({48, 5}, ++seed, torch::kFloat),
                      {.gate = gate, .capacity = capacity, .group_size = 16});  // 2.24 rows
      }
    }
  }
}

TEST(RouteExpertChoice, GradientsEqualFiniteDifferences) {
  for (const Gate gate : kExpertGates) {
    for (const auto& [kept, pruned] : {std::pair{std::vector<int64_t>{}, PrunedSelection::zero},
                                       {std::vector<int64_t>{0, 3}, PrunedSelection::zero},
                                       {std::vector<int64_t>{0, 3}, PrunedSelection::reroute}}) {
      at::Tensor logits = randn({14, 4}, 23).set_requires_grad(true);
      const RouteOptions by_rows{.kind = RoutingKind::expert_choice,
                                 .l = 3,
                                 .gate = gate,
                                 .group_size = 5,
                                 .kept = kept,
                                 .pruned = pruned};
      if (gate != Gate::one) {
        expect_gradients([&](const auto& in) { return route(in[0], by_rows).gate; }, {logits});
      }
      const RouteOptions by_capacity{.kind = RoutingKind::expert_choice,
                                     .gate = gate,
                                     .capacity = {.factor = 0.9},
                                     .kept = kept,
                                     .pruned = pruned};
      logits = randn({14, 4}, 24).set_requires_grad(true);
      expect_gradients([&](const auto& in) { return route(in[0], by_capacity).gate; }, {logits});
    }
  }
}

TEST(RouteExpertChoice, ResultsDoNotDependOnTheNumberOfThreads) {
  for (const Gate gate : kExpertGates) {
    testing::expect_same_on_threads(
        randn({4160, 5}, 1, torch::kFloat),
        {.kind = RoutingKind::expert_choice, .l = 16, .gate = gate, .group_size = 65});
  }
}

TEST(RouteExpertChoice, TakesNoTokensAndKnowsItsShapes) {
  for (const int64_t tokens : {0, 6, 40}) {
    for (const double factor : {0.0, 0.7}) {
      const RouteOptions options{.kind = RoutingKind::expert_choice,
                                 .l = factor > 0 ? 0 : 2,
                                 .gate = Gate::one,
                                 .capacity = {.factor = factor},
                                 .group_size = 9,
                                 .kept = {1, 2}};
      const at::Tensor logits = randn({tokens, 4}, 2, torch::kFloat);
      const Routing routing = route(logits, options);
      EXPECT_EQ(routing.num_tokens(), tokens);
      EXPECT_EQ(routing.choice.sizes(), (std::vector<int64_t>{tokens, 0}));
      expect_same_shapes(routing, route(logits.to(torch::kMeta), options));
    }
  }
}

TEST(RouteExpertChoice, NonContiguousLogitsGiveTheSame) {
  const at::Tensor logits = randn({6, 10}, 8, torch::kFloat).t();
  const RouteOptions options{
      .kind = RoutingKind::expert_choice, .l = 3, .gate = Gate::softmax_selected};
  expect_same_routing(route(logits, options), route(logits.contiguous(), options));
}

TEST(RouteExpertChoice, RefusesWrongInput) {
  const auto choose = [](const at::Tensor& logits, RouteOptions options) {
    options.kind = RoutingKind::expert_choice;
    options.gate = Gate::softmax_selected;
    return route(logits, options);
  };
  const at::Tensor logits = torch::zeros({10, 3});
  EXPECT_THROW(choose(logits, {}), Error);
  EXPECT_THROW(choose(logits, {.l = 2, .capacity = {.factor = 1.0}}), Error);
  EXPECT_THROW(choose(logits, {.l = -1}), Error);
  EXPECT_THROW(choose(logits, {.l = 11}), Error);
  EXPECT_THROW(choose(logits, {.l = 3, .group_size = 4}), Error);  // a tail of 2
  EXPECT_THROW(choose(logits, {.capacity = {.factor = -1.0}}), Error);
  EXPECT_THROW(choose(logits, {.capacity = {.factor = 1.0, .multiple_of = 0}}), Error);
  const auto unknown = static_cast<CapacityRounding>(2);
  EXPECT_THROW(choose(logits, {.capacity = {.factor = 1.0, .rounding = unknown}}), Error);
  EXPECT_THROW(choose(logits, {.l = 1, .group_size = -2}), Error);
  EXPECT_THROW(
      route(logits, {.kind = RoutingKind::expert_choice, .l = 1, .gate = static_cast<Gate>(9)}),
      Error);
  EXPECT_THROW(choose(logits, {.l = 1, .kept = {3}}), Error);
  EXPECT_THROW(choose(logits[0], {.l = 1}), Error);
  EXPECT_THROW(choose(logits.to(torch::kInt), {.l = 1}), Error);
  EXPECT_THROW(choose(torch::zeros({4, 0}), {.l = 1}), Error);
  const at::Tensor many = torch::zeros({1, 4}).expand({int64_t{1} << 30, 4});
  EXPECT_THROW(choose(many, {.l = int64_t{1} << 29}), Error);
  for (const Gate gate : kExpertGates) {
    for (const double value : {std::nan(""), std::numeric_limits<double>::infinity()}) {
      at::Tensor bad = torch::zeros({10, 3});
      bad[6][1] = value;
      EXPECT_THROW(route(bad, {.kind = RoutingKind::expert_choice, .l = 2, .gate = gate}),
                   DivergedError);
      EXPECT_NO_THROW(route(bad, {.kind = RoutingKind::expert_choice,
                                  .l = 2,
                                  .gate = gate,
                                  .kept = {0, 2},
                                  .pruned = PrunedSelection::reroute}));
    }
  }
}

TEST(RouteExpertChoice, RefusesANegativeNumberOfTokensBesideACapacity) {
  EXPECT_THROW(route(torch::zeros({8, 2}),
                     {.kind = RoutingKind::expert_choice, .l = -1, .capacity = {.factor = 1.0}}),
               Error);
}

TEST(RouteExpertChoice, RefusesAGateOfTokenChoice) {
  const RouteOptions options{.kind = RoutingKind::expert_choice, .l = 1, .gate = Gate::logit};
  EXPECT_EQ(test::failure_of([&] {
              route(torch::zeros({4, 3}), options);
            }),
            "route_expert_choice: gate 4 is unknown; choose 0 (softmax_selected), 1 "
            "(softmax_tokens), 2 (softmax_experts), 3 (one)");
}

}  // namespace
}  // namespace moesaic
