// SPDX-License-Identifier: Apache-2.0
#include "moesaic/ops/routing.h"

#include <utility>

#include "moesaic/ops/route.h"
#include "ops/route_reference.h"
#include "support/tensors.h"

namespace moesaic {
namespace {

TEST(CombineWeights, IsTheDenseMatrix) {
  const at::Tensor logits = randn({12, 4}, 3, torch::kFloat);
  const RouteOptions options{.k = 2, .kept = {0, 2}};
  const auto reference = testing::token_choice_reference(logits, options);
  const at::Tensor weights = combine_weights(route(logits, options));
  ASSERT_EQ(weights.sizes(), (std::vector<int64_t>{12, 2}));
  for (int64_t t = 0; t < 12; ++t) {
    EXPECT_NEAR(weights[t][0].item<double>(), reference.weight[t][0], 1e-6);
    EXPECT_NEAR(weights[t][1].item<double>(), reference.weight[t][2], 1e-6);
  }
}

/// A routing with drops and with rows of its buffer that are unused, and its gates' logits.
Routing with_unused_rows(const at::Tensor& logits) {
  const Routing routing = route(logits, {.k = 2, .capacity = {.rows = 6}});
  EXPECT_LT(routing.offsets[4].item<int64_t>(), routing.max_rows());
  return routing;
}

/// Checks that a part is a routing, by its dense matrix and by both of its orders.
void expect_part(const Routing& part, const at::Tensor& weights) {
  EXPECT_TRUE(torch::equal(combine_weights(part), weights));
  ASSERT_EQ(part.offsets[part.num_experts()].item<int64_t>(), part.max_rows());
  for (int64_t t = 0; t < part.num_tokens(); ++t) {
    double sum = 0.0;
    for (int64_t i = part.token_offsets[t].item<int64_t>();
         i < part.token_offsets[t + 1].item<int64_t>(); ++i) {
      const int64_t row = part.token_row[i].item<int64_t>();
      EXPECT_EQ(part.token[row].item<int64_t>(), t);
      sum += part.gate[row].item<double>();
    }
    EXPECT_NEAR(sum, weights[t].sum().item<double>(), 1e-6);
  }
}

TEST(RoutingOfTokens, IsAPartOfTheMatrix) {
  const at::Tensor logits = randn({12, 4}, 3, torch::kFloat);
  const Routing all = with_unused_rows(logits);
  for (const int64_t first : {0, 3, 8}) {
    expect_part(routing_of_tokens(all, first, 4), combine_weights(all).narrow(0, first, 4));
  }
}

TEST(RoutingOfExperts, IsAPartOfTheMatrix) {
  const at::Tensor logits = randn({12, 4}, 3, torch::kFloat).requires_grad_();
  const Routing all = with_unused_rows(logits);
  for (const int64_t first : {0, 1, 2}) {
    expect_part(routing_of_experts(all, first, 2), combine_weights(all).narrow(1, first, 2));
  }
  combine_weights(all).narrow(1, 1, 2).square().sum().backward();
  const at::Tensor gradient = std::exchange(logits.mutable_grad(), at::Tensor());
  routing_of_experts(with_unused_rows(logits), 1, 2).gate.square().sum().backward();
  EXPECT_TRUE(at::allclose(gradient, logits.grad()));
}

TEST(RoutingToMerged, SumsTheGatesOfTheExpertsOfASlot) {
  const at::Tensor logits = randn({12, 4}, 3, torch::kFloat).requires_grad_();
  const at::Tensor slots_EK =
      torch::tensor({{1.0f, 0.0f}, {0.0f, 1.0f}, {1.0f, 0.0f}, {1.0f, 0.0f}});
  const Routing all = with_unused_rows(logits);
  const Routing merged = routing_to_merged(all, {0, 1, 0, 0}, 2);
  const at::Tensor wanted = combine_weights(all).mm(slots_EK);
  expect_close(combine_weights(merged), wanted, 1e-6);
  EXPECT_LT(merged.max_rows(), all.offsets[4].item<int64_t>())
      << "some tokens select two of a slot";
  expect_part(merged, combine_weights(merged));
  for (int64_t e = 0; e < 2; ++e) {
    for (int64_t row = merged.offsets[e].item<int64_t>() + 1;
         row < merged.offsets[e + 1].item<int64_t>(); ++row) {
      EXPECT_LT(merged.token[row - 1].item<int64_t>(), merged.token[row].item<int64_t>());
    }
  }
  wanted.square().sum().backward();
  const at::Tensor gradient = std::exchange(logits.mutable_grad(), at::Tensor());
  routing_to_merged(with_unused_rows(logits), {0, 1, 0, 0}, 2).gate.square().sum().backward();
  expect_close(logits.grad(), gradient, 1e-6);
}

TEST(IndexOn, ListsTheIds) {
  using Ids = std::vector<int64_t>;
  for (const Ids& ids : {Ids{}, Ids{0}, Ids{3}, Ids{0, 1, 2}, Ids{0, 2, 3, 4, 7}, Ids{1, 3, 5}}) {
    EXPECT_TRUE(torch::equal(index_on(at::kCPU, ids), torch::tensor(ids, torch::kLong)));
  }
  EXPECT_TRUE(index_on(at::kMeta, {1, 2, 5}).is_meta());
}

TEST(RoutingOfRows, HasEachRowOnce) {
  Routing routing;
  routing.offsets = torch::tensor({0, 2, 3}, torch::kInt);
  routing.token = torch::tensor({4, 7, 4, 0}, torch::kInt);
  const Routing found = routing_of_rows(routing);
  EXPECT_TRUE(torch::equal(found.offsets, routing.offsets));
  EXPECT_TRUE(torch::equal(found.token, torch::arange(4, torch::kInt)));
}

TEST(RoutingToOneExpert, HasEveryToken) {
  for (const int32_t tokens : {0, 1, 7}) {
    const Routing routing = routing_to_one_expert(tokens, at::kCPU);
    EXPECT_TRUE(torch::equal(routing.offsets, torch::tensor({0, tokens}, torch::kInt)));
    EXPECT_TRUE(torch::equal(routing.token, torch::arange(tokens, torch::kInt)));
  }
}

}  // namespace
}  // namespace moesaic
