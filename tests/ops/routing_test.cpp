// SPDX-License-Identifier: Apache-2.0
#include "moesaic/ops/routing.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "moesaic/ops/route_token_choice.h"
#include "ops/route_reference.h"
#include "support/tensors.h"

namespace moesaic {
namespace {

TEST(CombineWeights, IsTheDenseMatrix) {
  const at::Tensor logits = testing::randn({12, 4}, 3, torch::kFloat);
  const TokenChoiceOptions options{.k = 2, .kept = {0, 2}};
  const auto reference = testing::token_choice_reference(logits, options);
  const at::Tensor weights = combine_weights(route_token_choice(logits, options));
  ASSERT_EQ(weights.sizes(), (std::vector<int64_t>{12, 2}));
  for (int64_t t = 0; t < 12; ++t) {
    EXPECT_NEAR(weights[t][0].item<double>(), reference.weight[t][0], 1e-6);
    EXPECT_NEAR(weights[t][1].item<double>(), reference.weight[t][2], 1e-6);
  }
}

TEST(IndexOn, ListsTheIds) {
  using Ids = std::vector<int64_t>;
  for (const Ids& ids : {Ids{}, Ids{0}, Ids{3}, Ids{0, 1, 2}, Ids{0, 2, 3, 4, 7}, Ids{1, 3, 5}}) {
    EXPECT_TRUE(torch::equal(index_on(at::kCPU, ids), torch::tensor(ids, torch::kLong)));
  }
  EXPECT_TRUE(index_on(at::kMeta, {1, 2, 5}).is_meta());
}

TEST(OffsetsOfOneExpert, EndWithTheRows) {
  for (const int32_t rows : {0, 1, 7}) {
    EXPECT_TRUE(
        torch::equal(offsets_of_one_expert(rows, at::kCPU), torch::tensor({0, rows}, torch::kInt)));
  }
}

}  // namespace
}  // namespace moesaic
