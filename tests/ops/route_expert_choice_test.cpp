// SPDX-License-Identifier: Apache-2.0
#include "moesaic/ops/route_expert_choice.h"

#include <limits>

#include "moesaic/ops/diverged.h"
#include "ops/route_reference.h"
#include "support/tensors.h"

namespace moesaic {
namespace {

using testing::expect_routing;
using testing::expect_same_routing;
using testing::expect_same_shapes;
using testing::expert_choice_reference;

constexpr ExpertGate kExpertGates[] = {ExpertGate::softmax_selected, ExpertGate::softmax_tokens,
                                       ExpertGate::softmax_experts, ExpertGate::one};

void expect_choice(const at::Tensor& logits, const ExpertChoiceOptions& options) {
  expect_routing(route_expert_choice(logits, options), expert_choice_reference(logits, options),
                 options.kept);
}

TEST(RouteExpertChoice, EqualsPlainLoopsOverASweep) {
  uint64_t seed = 100;
  for (const ExpertGate gate : kExpertGates) {
    for (const int64_t experts : {1, 3, 8}) {
      for (const int64_t rows : {1, 2, 5}) {
        const at::Tensor logits = randn({30, experts}, ++seed, torch::kFloat);
        expect_choice(logits, {.rows = rows, .group_size = 5, .gate = gate});
        expect_choice(logits, {.rows = rows, .group_size = 25, .gate = gate});
        expect_choice(logits.to(torch::kDouble), {.rows = rows, .gate = gate});
      }
      for (const double factor : {0.3, 1.0, 2.5, 100.0}) {
        const at::Tensor logits = randn({75, experts}, ++seed, torch::kFloat);
        expect_choice(logits, {.capacity_factor = factor, .group_size = 32, .gate = gate});
        expect_choice(logits, {.capacity_factor = factor, .gate = gate});
      }
    }
  }
}

TEST(RouteExpertChoice, EqualsPlainLoopsOnLongGroups) {
  for (const ExpertGate gate : kExpertGates) {
    const at::Tensor logits = randn({3000, 4}, 7, torch::kFloat);
    expect_choice(logits, {.rows = 600, .group_size = 1500, .gate = gate});
    expect_choice(logits, {.capacity_factor = 1.0, .gate = gate});
  }
}

TEST(RouteExpertChoice, GradientsInFloatAreThoseInDouble) {
  uint64_t seed = 40;
  for (const ExpertGate gate : kExpertGates) {
    if (gate == ExpertGate::one) continue;
    for (const int64_t group : {0, 300}) {
      for (const auto& kept : {std::vector<int64_t>{}, std::vector<int64_t>{1, 3}}) {
        const ExpertChoiceOptions options{
            .capacity_factor = 0.7, .group_size = group, .gate = gate, .kept = kept};
        const at::Tensor plain = randn({600, 5}, ++seed, torch::kFloat);
        const auto gradient_in = [&](at::ScalarType type) {
          const at::Tensor logits = plain.to(type).clone().set_requires_grad(true);
          const Routing routing = route_expert_choice(logits, options);
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
  const Routing routing =
      route_expert_choice(logits, {.rows = 8, .group_size = 8, .gate = ExpertGate::one});
  EXPECT_TRUE(torch::equal(routing.token, torch::arange(24, torch::kInt)));
  EXPECT_TRUE(torch::equal(routing.token_row, torch::arange(24, torch::kInt)));
  EXPECT_TRUE(torch::equal(routing.gate, torch::ones({24})));
  expect_choice(logits, {.rows = 8, .group_size = 8});
}

TEST(RouteExpertChoice, TiesGoToTheEarlierToken) {
  at::Tensor logits = torch::zeros({12, 3});
  logits[7][1] = 1.0;
  logits[2][2] = -0.0;
  for (const ExpertGate gate : kExpertGates) {
    for (const int64_t rows : {1, 3, 6}) {
      expect_choice(logits, {.rows = rows, .gate = gate});
      expect_choice(logits, {.rows = rows, .group_size = 6, .gate = gate});
    }
  }
  const Routing routing = route_expert_choice(logits, {.rows = 2});
  EXPECT_TRUE(torch::equal(routing.token, torch::tensor({0, 1, 0, 7, 0, 1}, torch::kInt)));
}

TEST(RouteExpertChoice, ATokenThatNobodySelectsGetsNoRow) {
  at::Tensor logits = randn({10, 3}, 5, torch::kFloat);
  logits[4].fill_(-30.0);
  const Routing routing = route_expert_choice(logits, {.rows = 4});
  EXPECT_EQ((routing.token_offsets[5] - routing.token_offsets[4]).item<int64_t>(), 0);
  expect_choice(logits, {.rows = 4});
}

TEST(RouteExpertChoice, ReroutingIsThePrunedRouterAlone) {
  for (const ExpertGate gate : kExpertGates) {
    for (const double factor : {0.0, 0.8}) {
      const at::Tensor logits = randn({40, 6}, 8, torch::kFloat);
      ExpertChoiceOptions options{factor > 0 ? 0 : 3,      factor, 20, gate, {1, 2, 5},
                                  PrunedSelection::reroute};
      const Routing routing = route_expert_choice(logits, options);
      expect_routing(routing, expert_choice_reference(logits, options), options.kept);
      options.kept = {};
      expect_same_routing(
          routing, route_expert_choice(logits.index_select(1, torch::tensor({1, 2, 5})), options));
    }
  }
}

TEST(RouteExpertChoice, PruningLeavesTheOtherExpertsAlone) {
  for (const ExpertGate gate : kExpertGates) {
    for (const double factor : {0.0, 0.8}) {
      const at::Tensor logits = randn({40, 6}, 8, torch::kFloat);
      ExpertChoiceOptions options{factor > 0 ? 0 : 3, factor, 20, gate, {1, 2, 5}};
      const at::Tensor pruned = combine_weights(route_expert_choice(logits, options));
      expect_choice(logits, options);
      options.kept = {};
      const at::Tensor whole = combine_weights(route_expert_choice(logits, options));
      EXPECT_TRUE(torch::equal(pruned, whole.index_select(1, torch::tensor({1, 2, 5}))));
    }
  }
}

TEST(RouteExpertChoice, CapacitiesRoundAndRiseAsTold) {
  uint64_t seed = 900;
  for (const ExpertGate gate : kExpertGates) {
    for (const auto rounding : {CapacityRounding::ceil, CapacityRounding::round}) {
      for (const int64_t multiple : {1, 3}) {
        ExpertChoiceOptions options{.capacity_factor = 0.7, .group_size = 16, .gate = gate};
        options.capacity_rounding = rounding;
        options.capacity_multiple_of = multiple;
        expect_choice(randn({48, 5}, ++seed, torch::kFloat), options);  // 2.24 rows
      }
    }
  }
}

TEST(RouteExpertChoice, GradientsEqualFiniteDifferences) {
  for (const ExpertGate gate : kExpertGates) {
    for (const auto& [kept, pruned] :
         {std::pair{std::vector<int64_t>{}, PrunedSelection::zero},
          std::pair{std::vector<int64_t>{0, 3}, PrunedSelection::zero},
          std::pair{std::vector<int64_t>{0, 3}, PrunedSelection::reroute}}) {
      at::Tensor logits = randn({14, 4}, 23).set_requires_grad(true);
      const ExpertChoiceOptions by_rows{3, 0.0, 5, gate, kept, pruned};
      if (gate != ExpertGate::one) {
        expect_gradients([&](const auto& in) { return route_expert_choice(in[0], by_rows).gate; },
                         {logits});
      }
      const ExpertChoiceOptions by_capacity{0, 0.9, 0, gate, kept, pruned};
      logits = randn({14, 4}, 24).set_requires_grad(true);
      expect_gradients([&](const auto& in) { return route_expert_choice(in[0], by_capacity).gate; },
                       {logits});
    }
  }
}

TEST(RouteExpertChoice, ResultsDoNotDependOnTheNumberOfThreads) {
  const int threads = at::get_num_threads();
  for (const ExpertGate gate : kExpertGates) {
    std::vector<Routing> routings;
    std::vector<at::Tensor> grads;
    for (const int n : {1, 2, 5}) {
      at::set_num_threads(n);
      at::Tensor logits = randn({4160, 5}, 1, torch::kFloat).set_requires_grad(true);
      routings.push_back(route_expert_choice(logits, {.rows = 16, .group_size = 65, .gate = gate}));
      routings.back().gate.square().sum().backward();
      grads.push_back(logits.grad());
    }
    for (size_t i = 1; i < routings.size(); ++i) {
      expect_same_routing(routings[0], routings[i]);
      EXPECT_TRUE(torch::equal(grads[0], grads[i]));
    }
  }
  at::set_num_threads(threads);
}

TEST(RouteExpertChoice, TakesNoTokensAndKnowsItsShapes) {
  for (const int64_t tokens : {0, 6, 40}) {
    for (const double factor : {0.0, 0.7}) {
      const ExpertChoiceOptions options{factor > 0 ? 0 : 2, factor, 9, ExpertGate::one, {1, 2}};
      const at::Tensor logits = randn({tokens, 4}, 2, torch::kFloat);
      const Routing routing = route_expert_choice(logits, options);
      EXPECT_EQ(routing.num_tokens(), tokens);
      EXPECT_EQ(routing.choice.sizes(), (std::vector<int64_t>{tokens, 0}));
      expect_same_shapes(routing, route_expert_choice(logits.to(torch::kMeta), options));
    }
  }
}

TEST(RouteExpertChoice, NonContiguousLogitsGiveTheSame) {
  const at::Tensor logits = randn({6, 10}, 8, torch::kFloat).t();
  expect_same_routing(route_expert_choice(logits, {.rows = 3}),
                      route_expert_choice(logits.contiguous(), {.rows = 3}));
}

TEST(RouteExpertChoice, RefusesWrongInput) {
  const at::Tensor logits = torch::zeros({10, 3});
  EXPECT_THROW(route_expert_choice(logits, {}), Error);
  EXPECT_THROW(route_expert_choice(logits, {.rows = 2, .capacity_factor = 1.0}), Error);
  EXPECT_THROW(route_expert_choice(logits, {.rows = -1}), Error);
  EXPECT_THROW(route_expert_choice(logits, {.rows = 11}), Error);
  EXPECT_THROW(route_expert_choice(logits, {.rows = 3, .group_size = 4}), Error);  // a tail of 2
  EXPECT_THROW(route_expert_choice(logits, {.capacity_factor = -1.0}), Error);
  EXPECT_THROW(route_expert_choice(logits, {.capacity_factor = 1.0, .capacity_multiple_of = 0}),
               Error);
  const auto unknown = static_cast<CapacityRounding>(2);
  EXPECT_THROW(route_expert_choice(logits, {.capacity_factor = 1.0, .capacity_rounding = unknown}),
               Error);
  EXPECT_THROW(route_expert_choice(logits, {.rows = 1, .group_size = -2}), Error);
  EXPECT_THROW(route_expert_choice(logits, {.rows = 1, .gate = static_cast<ExpertGate>(9)}), Error);
  EXPECT_THROW(route_expert_choice(logits, {.rows = 1, .kept = {3}}), Error);
  EXPECT_THROW(route_expert_choice(logits[0], {.rows = 1}), Error);
  EXPECT_THROW(route_expert_choice(logits.to(torch::kInt), {.rows = 1}), Error);
  EXPECT_THROW(route_expert_choice(torch::zeros({4, 0}), {.rows = 1}), Error);
  const at::Tensor many = torch::zeros({1, 4}).expand({int64_t{1} << 30, 4});
  EXPECT_THROW(route_expert_choice(many, {.rows = int64_t{1} << 29}), Error);
  for (const ExpertGate gate : kExpertGates) {
    for (const double value : {std::nan(""), std::numeric_limits<double>::infinity()}) {
      at::Tensor bad = torch::zeros({10, 3});
      bad[6][1] = value;
      EXPECT_THROW(route_expert_choice(bad, {.rows = 2, .gate = gate}), DivergedError);
      ExpertChoiceOptions without{.rows = 2, .gate = gate, .kept = {0, 2}};
      without.pruned = PrunedSelection::reroute;
      EXPECT_NO_THROW(route_expert_choice(bad, without));
    }
  }
}

TEST(RouteExpertChoice, ItsGatesHaveNames) {
  for (const ExpertGate gate : kExpertGates) {
    EXPECT_EQ(expert_gate_from_name(expert_gate_names()[static_cast<size_t>(gate)]), gate);
  }
  EXPECT_THROW(expert_gate_from_name("softmax"), Error);
}

}  // namespace
}  // namespace moesaic
