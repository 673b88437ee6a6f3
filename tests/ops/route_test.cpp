// SPDX-License-Identifier: Apache-2.0
#include "moesaic/ops/route.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <limits>

#include "moesaic/base/error.h"
#include "ops/route_reference.h"
#include "support/tensors.h"

namespace moesaic {
namespace {

using testing::expect_gradients;
using testing::randn;
using testing::route_reference;

std::vector<int64_t> all_experts(int64_t experts) {
  std::vector<int64_t> ids(experts);
  for (int64_t e = 0; e < experts; ++e) ids[e] = e;
  return ids;
}

/// Checks every array of the routing against the plain loops.
void expect_routing(const at::Tensor& logits, const TokenChoiceOptions& options) {
  const Routing routing = route_token_choice(logits, options);
  const auto reference = route_reference(logits, options);
  const auto kept = options.kept.empty() ? all_experts(logits.size(1)) : options.kept;
  ASSERT_EQ(routing.experts(), static_cast<int64_t>(kept.size()));
  ASSERT_EQ(routing.tokens(), logits.size(0));
  int64_t row = 0;
  std::vector<std::vector<int64_t>> rows_of(logits.size(0));
  for (size_t slot = 0; slot < kept.size(); ++slot) {
    ASSERT_EQ(routing.offsets[slot].item<int64_t>(), row);
    for (int64_t t = 0; t < logits.size(0); ++t) {
      if (!reference.routed[t][kept[slot]]) continue;
      ASSERT_EQ(routing.token[row].item<int64_t>(), t);
      EXPECT_NEAR(routing.gate[row].item<double>(), reference.weight[t][kept[slot]], 1e-6);
      rows_of[t].push_back(row++);
    }
  }
  ASSERT_EQ(routing.offsets[kept.size()].item<int64_t>(), row);
  ASSERT_LE(row, routing.row_bound());
  for (int64_t t = 0; t < logits.size(0); ++t) {
    const int64_t begin = routing.token_offsets[t].item<int64_t>();
    const int64_t end = routing.token_offsets[t + 1].item<int64_t>();
    std::vector<int64_t> found;
    for (int64_t i = begin; i < end; ++i) found.push_back(routing.token_row[i].item<int64_t>());
    std::sort(found.begin(), found.end());
    EXPECT_EQ(found, rows_of[t]) << "token " << t;
  }
  for (int64_t i = row; i < routing.row_bound(); ++i) {
    EXPECT_EQ(routing.gate[i].item<double>(), 0.0);
  }
}

TEST(RouteTokenChoice, EqualsPlainLoopsOverASweep) {
  uint64_t seed = 0;
  for (const int64_t tokens : {0, 1, 7, 33}) {
    for (const int64_t experts : {1, 3, 8}) {
      for (const int64_t k : {1, 2, 3}) {
        if (k > experts) continue;
        for (const auto softmax : {GateSoftmax::all, GateSoftmax::selected}) {
          for (const double factor : {0.0, 0.4, 1.25}) {
            TokenChoiceOptions options{k, softmax, factor, tokens > 8 ? 8 : 0, {}};
            expect_routing(randn({tokens, experts}, ++seed, torch::kFloat), options);
          }
        }
      }
    }
  }
}

TEST(RouteTokenChoice, TiesGoToTheLowerExpert) {
  const at::Tensor logits = torch::zeros({5, 6});
  const Routing routing = route_token_choice(logits, {.k = 2});
  EXPECT_TRUE(torch::equal(routing.choice, torch::tensor({{0, 1}}, torch::kInt).expand({5, 2})));
  expect_routing(logits, {.k = 2});
}

TEST(RouteTokenChoice, FirstChoicesQueueBeforeSecondOnes) {
  // Tokens 0..3 have expert 1 as second choice, tokens 4..7 as first; with room for four, the
  // latter win.
  at::Tensor logits = torch::zeros({8, 4});
  for (int64_t t = 0; t < 8; ++t) {
    logits[t][t < 4 ? 0 : 1] = 2.0;
    logits[t][t < 4 ? 1 : 2] = 1.0;
  }
  const TokenChoiceOptions options{.k = 2, .capacity_factor = 1.0};
  const Routing routing = route_token_choice(logits, options);
  const int64_t begin = routing.offsets[1].item<int64_t>();
  EXPECT_EQ(routing.offsets[2].item<int64_t>() - begin, 4);
  for (int64_t i = 0; i < 4; ++i) EXPECT_EQ(routing.token[begin + i].item<int64_t>(), 4 + i);
  expect_routing(logits, options);
}

TEST(RouteTokenChoice, PrunedExpertsGetNoRowsAndLeaveTheOthersGatesAlone) {
  for (const auto softmax : {GateSoftmax::all, GateSoftmax::selected}) {
    for (const double factor : {0.0, 0.5}) {
      const at::Tensor logits = randn({40, 8}, 5, torch::kFloat);
      expect_routing(logits, {2, softmax, factor, 20, {1, 4, 6}});
      expect_routing(logits, {2, softmax, factor, 20, {7}});
    }
  }
}

TEST(RouteTokenChoice, GradientsEqualFiniteDifferences) {
  for (const auto softmax : {GateSoftmax::all, GateSoftmax::selected}) {
    for (const auto& kept : {std::vector<int64_t>{}, std::vector<int64_t>{0, 3}}) {
      const TokenChoiceOptions options{2, softmax, kept.empty() ? 0.6 : 0.0, 0, kept};
      at::Tensor logits = randn({9, 5}, 17).set_requires_grad(true);
      expect_gradients([&](const auto& in) { return route_token_choice(in[0], options).gate; },
                       {logits});
    }
  }
}

TEST(RouteTokenChoice, CombineWeightsIsTheDenseMatrix) {
  const at::Tensor logits = randn({12, 4}, 3, torch::kFloat);
  const TokenChoiceOptions options{.k = 2, .kept = {0, 2}};
  const auto reference = route_reference(logits, options);
  const at::Tensor weights = combine_weights(route_token_choice(logits, options));
  ASSERT_EQ(weights.sizes(), (std::vector<int64_t>{12, 2}));
  for (int64_t t = 0; t < 12; ++t) {
    EXPECT_NEAR(weights[t][0].item<double>(), reference.weight[t][0], 1e-6);
    EXPECT_NEAR(weights[t][1].item<double>(), reference.weight[t][2], 1e-6);
  }
}

TEST(RouteTokenChoice, NonContiguousLogitsGiveTheSame) {
  const at::Tensor logits = randn({6, 10}, 8, torch::kFloat).t();
  const Routing a = route_token_choice(logits, {.k = 2});
  const Routing b = route_token_choice(logits.contiguous(), {.k = 2});
  EXPECT_TRUE(torch::equal(a.token, b.token));
  EXPECT_TRUE(torch::equal(a.gate, b.gate));
}

TEST(RouteTokenChoice, RefusesWrongInput) {
  const at::Tensor logits = torch::zeros({4, 3});
  EXPECT_THROW(route_token_choice(logits, {.k = 4}), Error);
  EXPECT_THROW(route_token_choice(logits, {.k = 0}), Error);
  EXPECT_THROW(route_token_choice(logits[0], {.k = 1}), Error);
  EXPECT_THROW(route_token_choice(logits.to(torch::kLong), {.k = 1}), Error);
  EXPECT_THROW(route_token_choice(logits, {.k = 1, .capacity_factor = -1.0}), Error);
  EXPECT_THROW(route_token_choice(logits, {.k = 1, .kept = {2, 1}}), Error);
  EXPECT_THROW(route_token_choice(logits, {.k = 1, .kept = {3}}), Error);
  at::Tensor bad = logits.clone();
  bad[2][1] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_THROW(route_token_choice(bad, {.k = 1}), Error);
}

TEST(ExpertCapacity, FollowsTheReferenceTable) {
  EXPECT_EQ(expert_capacity(68, 2, 1.5, 8), 28);  // ceil(25.5) = 26, raised to 28
  EXPECT_EQ(expert_capacity(8, 1, 1.0, 8), 4);    // 1, raised to 4
  EXPECT_EQ(expert_capacity(520, 2, 1.05, 8), 140);
  EXPECT_THROW(expert_capacity(0, 1, 1.0, 8), Error);
}

}  // namespace
}  // namespace moesaic
