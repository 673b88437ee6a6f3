// SPDX-License-Identifier: Apache-2.0
#include "moesaic/ops/route.h"

#include <fmt/format.h>

#include <limits>

#include "base/support.h"
#include "ops/route_reference.h"
#include "support/matchers.h"
#include "support/tensors.h"

namespace moesaic {
namespace {

using testing::expect_routing;
using testing::expect_same_routing;
using testing::expect_same_shapes;
using testing::token_choice_reference;

constexpr Gate kGates[] = {Gate::softmax_selected, Gate::softmax_all, Gate::logit, Gate::one};
constexpr double kInfinity = std::numeric_limits<double>::infinity();

void expect_route(const at::Tensor& logits, const RouteOptions& options) {
  expect_routing(route(logits, options), token_choice_reference(logits, options), options.kept);
}

TEST(RouteTokenChoice, EqualsPlainLoopsOverASweep) {
  uint64_t seed = 0;
  for (const int64_t tokens : {0, 1, 7, 33, 70}) {
    for (const int64_t experts : {1, 3, 8}) {
      for (const int64_t k : {1, 2, 3}) {
        if (k > experts) continue;
        for (const Gate gate : kGates) {
          for (const double factor : {0.0, 0.4, 1.25}) {
            const at::Tensor logits = randn({tokens, experts}, ++seed, torch::kFloat);
            RouteOptions options{.k = k, .gate = gate, .capacity = {.factor = factor}};
            options.group_size = tokens > 8 ? 8 : 0;
            expect_route(logits, options);
            options.capacity.batch_priority = true;
            options.group_size = tokens > 8 ? 30 : 0;
            expect_route(logits, options);
          }
        }
      }
    }
  }
}

TEST(RouteTokenChoice, EqualsPlainLoopsWhereGroupsSpanManySegments) {
  for (const bool batch_priority : {false, true}) {
    for (const int64_t group_size : {0, 700, 1300, 65}) {
      for (const double factor : {0.0, 0.6, 1.05}) {
        const at::Tensor logits = randn({2000, 6}, 77 + group_size, torch::kFloat);
        expect_route(logits, {.k = 2,
                              .capacity = {.factor = factor, .batch_priority = batch_priority},
                              .group_size = group_size});
      }
    }
  }
}

TEST(RouteTokenChoice, ACapacityOfSoManyRowsEqualsPlainLoops) {
  for (const int64_t capacity : {1, 3, 7, 40}) {
    for (const int64_t group_size : {0, 16, 30}) {
      for (const bool batch_priority : {false, true}) {
        expect_route(randn({60, 5}, 5 + capacity, torch::kFloat),
                     {.k = 2,
                      .capacity = {.rows = capacity, .batch_priority = batch_priority},
                      .group_size = group_size});
      }
    }
  }
  const at::Tensor logits = randn({8, 4}, 1, torch::kFloat);
  EXPECT_THROW(route(logits, {.capacity = {.factor = 1.0, .rows = 3}}), Error);
  EXPECT_THROW(route(logits, {.capacity = {.rows = -1}}), Error);
}

TEST(RouteTokenChoice, Float64EqualsPlainLoops) {
  for (const Gate gate : kGates) {
    expect_route(randn({50, 5}, 3), {.k = 2,
                                     .gate = gate,
                                     .capacity = {.factor = 0.7, .batch_priority = true},
                                     .group_size = 20});
  }
}

TEST(RouteTokenChoice, TiesGoToTheLowerExpert) {
  const at::Tensor logits = torch::zeros({5, 6});
  const Routing routing = route(logits, {.k = 2});
  EXPECT_TRUE(torch::equal(routing.choice, torch::tensor({{0, 1}}, torch::kInt).expand({5, 2})));
  expect_route(logits, {.k = 2});
  at::Tensor pairs = torch::zeros({40, 6});
  pairs.slice(1, 2, 4).fill_(1.0);
  pairs.slice(1, 4, 6).fill_(-0.0);
  for (const int64_t k : {1, 3, 6}) {
    expect_route(pairs, {.k = k, .capacity = {.factor = 0.8}});
    expect_route(pairs, {.k = k, .capacity = {.factor = 0.8, .batch_priority = true}});
  }
}

TEST(RouteTokenChoice, FirstChoicesQueueBeforeSecondOnes) {
  // Tokens 0..3 have expert 1 as second choice, tokens 4..7 as first; with room for four, the
  // latter win.
  at::Tensor logits = torch::zeros({8, 4});
  for (int64_t t = 0; t < 8; ++t) {
    logits[t][t < 4 ? 0 : 1] = 2.0;
    logits[t][t < 4 ? 1 : 2] = 1.0;
  }
  const RouteOptions options{.k = 2, .capacity = {.factor = 1.0}};
  const Routing routing = route(logits, options);
  const int64_t begin = routing.offsets[1].item<int64_t>();
  EXPECT_EQ(routing.offsets[2].item<int64_t>() - begin, 4);
  for (int64_t i = 0; i < 4; ++i) EXPECT_EQ(routing.token[begin + i].item<int64_t>(), 4 + i);
  expect_route(logits, options);
}

TEST(RouteTokenChoice, BatchPriorityServesTheLargestGateFirstAndEqualOnesInTokenOrder) {
  // All tokens want expert 0, room is for four: tokens 9 and 5 by their gate, then the first two of
  // the equal rest.
  at::Tensor logits = torch::zeros({16, 4});
  logits.select(1, 0).fill_(1.0);
  logits[9][0] = 3.0;
  logits[5][0] = 2.0;
  const Routing routing =
      route(logits, {.k = 1, .capacity = {.factor = 1.0, .batch_priority = true}});
  const at::Tensor tokens = routing.token.slice(0, 0, routing.offsets[1].item<int64_t>());
  EXPECT_TRUE(torch::equal(tokens, torch::tensor({0, 1, 5, 9}, torch::kInt)));
  // Without a softmax that tells tokens apart, position decides.
  const Routing even = route(
      logits, {.k = 1, .gate = Gate::one, .capacity = {.factor = 1.0, .batch_priority = true}});
  EXPECT_TRUE(torch::equal(even.token.slice(0, 0, 4), torch::tensor({0, 1, 2, 3}, torch::kInt)));
}

TEST(RouteTokenChoice, OneHotExpertDropsWhatExceedsItsCapacity) {
  for (const bool batch_priority : {false, true}) {
    at::Tensor logits = randn({300, 4}, 21, torch::kFloat);
    logits.select(1, 2) += 50.0;
    const RouteOptions options{.k = 1,
                               .capacity = {.factor = 1.0, .batch_priority = batch_priority}};
    const Routing routing = route(logits, options);
    EXPECT_EQ(routing.offsets[4].item<int64_t>(), 76);  // 75, raised to a multiple of 4
    expect_route(logits, options);
  }
}

TEST(RouteTokenChoice, AnExactlyFullQueueDropsNothing) {
  // Four tokens for each of four experts and capacities of exactly four.
  at::Tensor logits = torch::zeros({16, 4});
  for (int64_t t = 0; t < 16; ++t) logits[t][t % 4] = 1.0;
  for (const bool batch_priority : {false, true}) {
    const RouteOptions options{.k = 1,
                               .capacity = {.factor = 1.0, .batch_priority = batch_priority}};
    EXPECT_EQ(route(logits, options).offsets[4].item<int64_t>(), 16);
    expect_route(logits, options);
    expect_route(logits, {.k = 2, .capacity = {.factor = 0.5, .batch_priority = batch_priority}});
  }
}

TEST(RouteTokenChoice, KeptRowsOfPrunedExpertsLeaveTheOthersAlone) {
  for (const Gate gate : kGates) {
    for (const double factor : {0.0, 0.5}) {
      for (const bool batch_priority : {false, true}) {
        const at::Tensor logits = randn({40, 8}, 5, torch::kFloat);
        for (const auto& kept : {std::vector<int64_t>{1, 4, 6}, {7}}) {
          expect_route(logits, {.k = 2,
                                .gate = gate,
                                .capacity = {.factor = factor, .batch_priority = batch_priority},
                                .group_size = 20,
                                .kept = kept});
        }
      }
    }
  }
  at::Tensor never = randn({20, 4}, 6, torch::kFloat);
  never.select(1, 3) -= 50.0;
  const Routing routing = route(never, {.k = 2, .kept = {3}});
  EXPECT_EQ(routing.offsets[1].item<int64_t>(), 0);
  expect_route(never, {.k = 2, .kept = {3}});
}

TEST(RouteTokenChoice, DroppedRowsOfPrunedExpertsRouteAmongTheKept) {
  for (const Gate gate : kGates) {
    for (const double factor : {0.0, 0.5}) {
      const at::Tensor logits = randn({40, 8}, 5, torch::kFloat);
      const RouteOptions options{.k = 2,
                                 .gate = gate,
                                 .capacity = {.factor = factor},
                                 .group_size = 20,
                                 .kept = {1, 4, 6},
                                 .pruned = PrunedSelection::reroute};
      const Routing routing = route(logits, options);
      expect_routing(routing, token_choice_reference(logits, options), options.kept);
      // The same as a router that never had the others, but for the numbers of its choices.
      const at::Tensor columns = torch::tensor({1, 4, 6});
      RouteOptions own = options;
      own.kept = {};
      own.pruned = PrunedSelection::zero;
      Routing small = route(logits.index_select(1, columns), own);
      small.choice = columns.to(torch::kInt)
                         .index_select(0, small.choice.flatten())
                         .view(small.choice.sizes());
      expect_same_routing(routing, small);
    }
  }
  EXPECT_THROW(
      route(torch::zeros({4, 3}), {.k = 2, .kept = {1}, .pruned = PrunedSelection::reroute}),
      Error);
}

TEST(RouteTokenChoice, GradientsEqualFiniteDifferences) {
  const std::vector<int64_t> some = {0, 3, 4};
  for (const Gate gate : kGates) {
    for (const auto pruned : {PrunedSelection::zero, PrunedSelection::reroute}) {
      for (const auto& kept : {std::vector<int64_t>{}, some}) {
        for (const double factor : {0.0, 0.6}) {
          const RouteOptions options{.k = 2,
                                     .gate = gate,
                                     .capacity = {.factor = factor, .batch_priority = factor > 0},
                                     .kept = kept,
                                     .pruned = pruned};
          at::Tensor logits = randn({19, 5}, 17).set_requires_grad(true);
          expect_gradients([&](const auto& in) { return route(in[0], options).gate; }, {logits});
        }
      }
    }
  }
}

TEST(RouteTokenChoice, Float32GradientsEqualThoseOfFloat64) {
  for (const Gate gate : kGates) {
    const RouteOptions options{
        .k = 2, .gate = gate, .capacity = {.factor = 0.8}, .group_size = 30, .kept = {0, 2, 5}};
    at::Tensor wide = randn({600, 6}, 18).set_requires_grad(true);
    at::Tensor narrow = wide.detach().to(torch::kFloat).set_requires_grad(true);
    wide.data().copy_(narrow.detach());
    const at::Tensor weight = randn({route(wide, options).max_rows()}, 4);
    (route(wide, options).gate * weight).sum().backward();
    (route(narrow, options).gate * weight.to(torch::kFloat)).sum().backward();
    expect_close(narrow.grad(), wide.grad(), 1e-6);
  }
}

TEST(RouteTokenChoice, ResultsDoNotDependOnTheNumberOfThreads) {
  const at::Tensor logits = randn({5000, 7}, 1, torch::kFloat);
  for (const bool batch_priority : {false, true}) {
    for (const int64_t group_size : {0, 900, 65}) {
      testing::expect_same_on_threads(
          logits, {.k = 2,
                   .capacity = {.factor = 0.9, .batch_priority = batch_priority},
                   .group_size = group_size});
    }
  }
}

TEST(RouteTokenChoice, MaskedExpertsAreTakenLastWithGateZero) {
  at::Tensor logits = randn({10, 4}, 9, torch::kFloat);
  logits.select(1, 1).fill_(-kInfinity);
  logits.select(1, 2).fill_(-kInfinity);
  const Routing routing = route(logits, {.k = 3});
  EXPECT_TRUE(routing.choice.select(1, 2).eq(1).all().item<bool>());
  const at::Tensor masked =
      routing.gate.slice(0, routing.offsets[1].item<int64_t>(), routing.offsets[2].item<int64_t>());
  EXPECT_EQ(masked.size(0), 10);
  EXPECT_EQ(masked.abs().sum().item<double>(), 0.0);
  EXPECT_THROW(route(logits, {.k = 3, .gate = Gate::logit}), Error);
}

TEST(RouteTokenChoice, MaskedExpertsGetNoGradient) {
  for (const auto type : {torch::kFloat, torch::kDouble}) {
    for (const Gate gate : {Gate::softmax_selected, Gate::softmax_all}) {
      at::Tensor logits = randn({10, 4}, 9, type);
      logits.select(1, 1).fill_(-kInfinity);
      logits.select(1, 2).fill_(-kInfinity);
      logits.set_requires_grad(true);
      route(logits, {.k = 3, .gate = gate}).gate.square().sum().backward();
      EXPECT_TRUE(logits.grad().isfinite().all().item<bool>());
      EXPECT_EQ(logits.grad().slice(1, 1, 3).abs().sum().item<double>(), 0.0);
      EXPECT_GT(logits.grad().select(1, 0).abs().min().item<double>(), 0.0);
    }
  }
}

TEST(RouteTokenChoice, NamesTheFirstTokenWithBadLogits) {
  const int64_t tokens = 5000;
  for (const int64_t token : {0, 30, 31, 32, 63, 64, 2047, 2048, 4998, 4999}) {
    for (const double value : {std::nan(""), kInfinity}) {
      at::Tensor logits = torch::zeros({tokens, 3});
      logits[token][1] = value;
      logits[tokens - 1][0] = value;
      try {
        route(logits, {.k = 2});
        ADD_FAILURE() << "took " << value << " at token " << token;
      } catch (const DivergedError& error) {
        EXPECT_THAT(error.what(), HasSubstr(fmt::format("token {} ", token)));
      }
    }
  }
}

TEST(RouteTokenChoice, TheMetaDeviceKnowsTheShapes) {
  for (const int64_t tokens : {0, 1, 50}) {
    for (const double factor : {0.0, 0.5, 1.5}) {
      for (const auto pruned : {PrunedSelection::zero, PrunedSelection::reroute}) {
        const RouteOptions options{.k = 2,
                                   .gate = Gate::softmax_all,
                                   .capacity = {.factor = factor, .batch_priority = true},
                                   .group_size = 20,
                                   .kept = {0, 3},
                                   .pruned = pruned};
        const at::Tensor logits = randn({tokens, 5}, 2, torch::kFloat);
        expect_same_shapes(route(logits, options), route(logits.to(torch::kMeta), options));
      }
    }
  }
}

TEST(RouteTokenChoice, NonContiguousLogitsGiveTheSame) {
  const at::Tensor logits = randn({6, 10}, 8, torch::kFloat).t();
  expect_same_routing(route(logits, {.k = 2}), route(logits.contiguous(), {.k = 2}));
}

TEST(RouteTokenChoice, RefusesWrongInput) {
  const at::Tensor logits = torch::zeros({4, 3});
  EXPECT_THROW(route(logits, {.k = 4}), Error);
  EXPECT_THROW(route(logits, {.k = 0}), Error);
  EXPECT_THROW(route(logits[0], {.k = 1}), Error);
  EXPECT_THROW(route(torch::zeros({4, 0}), {.k = 1}), Error);
  EXPECT_THROW(route(logits.to(torch::kLong), {.k = 1}), Error);
  EXPECT_THROW(route(logits, {.k = 1, .gate = static_cast<Gate>(4)}), Error);
  EXPECT_THROW(route(logits, {.k = 1, .capacity = {.factor = -1.0}}), Error);
  EXPECT_THROW(route(logits, {.k = 1, .capacity = {.factor = NAN}}), Error);
  EXPECT_THROW(route(logits, {.k = 1, .group_size = -1}), Error);
  EXPECT_THROW(route(logits, {.k = 1, .kept = {2, 1}}), Error);
  EXPECT_THROW(route(logits, {.k = 1, .kept = {3}}), Error);
  EXPECT_THROW(route(logits, {.k = 1, .kept = {-1}}), Error);
  for (const double value : {std::nan(""), kInfinity}) {
    for (const int64_t expert : {0, 1, 2}) {
      at::Tensor bad = torch::zeros({4, 3});
      bad[2][expert] = value;
      EXPECT_THROW(route(bad, {.k = 2}), Error);
    }
  }
  EXPECT_THROW(route(torch::full({2, 3}, -kInfinity), {.k = 1}), Error);
}

TEST(RouteTokenChoice, RefusesMoreRowsThanIndicesCanCount) {
  const at::Tensor many = torch::zeros({1, 4}).expand({int64_t{1} << 30, 4});
  EXPECT_THROW(route(many, {.k = 2}), Error);
  EXPECT_THROW(route(many.to(torch::kMeta), {.k = 3}), Error);
}

TEST(RouteTokenChoice, HugeSettingsMeanNoLimit) {
  const at::Tensor logits = randn({12, 4}, 3, torch::kFloat);
  const Routing free = route(logits, {.k = 2});
  expect_same_routing(free, route(logits, {.k = 2,
                                           .capacity = {.factor = 1e300},
                                           .group_size = std::numeric_limits<int64_t>::max()}));
}

TEST(RouteTokenChoice, ItsGradientRefusesForeignIndices) {
  const auto op = c10::Dispatcher::singleton()
                      .findSchemaOrThrow("moesaic::route_token_choice_backward", "")
                      .typed<at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&,
                                        const at::Tensor&, int64_t, at::IntArrayRef, bool)>();
  const at::Tensor grad = torch::ones({2}), logits = torch::zeros({2, 3});
  const auto index = [](int32_t a, int32_t b) { return torch::tensor({{a}, {b}}, torch::kInt); };
  EXPECT_NO_THROW(op.call(grad, logits, index(0, 2), index(1, -1), 1, {}, false));
  EXPECT_THROW(op.call(grad, logits, index(0, 3), index(0, 1), 1, {}, false), Error);
  EXPECT_THROW(op.call(grad, logits, index(0, -1), index(0, 1), 1, {}, false), Error);
  EXPECT_THROW(op.call(grad, logits, index(0, 1), index(0, 2), 1, {}, false), Error);
}

TEST(GateNames, AreFoundAndMisspeltOnesRefused) {
  EXPECT_EQ(gate_from_name("softmax_selected"), Gate::softmax_selected);
  EXPECT_EQ(gate_from_name("softmax_all"), Gate::softmax_all);
  EXPECT_EQ(gate_from_name("logit"), Gate::logit);
  EXPECT_EQ(gate_from_name("one"), Gate::one);
  EXPECT_THROW(gate_from_name("softmax"), Error);
}

TEST(RouteTokenChoice, IgnoresTheNumberOfTokensAndRefusesTheGateOfExpertChoice) {
  const at::Tensor logits = randn({9, 3}, 1);
  expect_same_routing(route(logits, {.k = 2, .l = 1}), route(logits, {.k = 2}));
  EXPECT_THROW(route(logits, {.k = 2, .gate = Gate::softmax_tokens}), Error);
}

TEST(RouteTokenChoice, OffersNoGateThatItRefuses) {
  const at::Tensor logits = at::zeros({4, 2});
  EXPECT_THAT(test::failure_of([&] { route(logits, {.k = 1, .gate = static_cast<Gate>(5)}); }),
              AllOf(HasSubstr("softmax_all"), Not(HasSubstr("softmax_tokens"))));
}

}  // namespace
}  // namespace moesaic
