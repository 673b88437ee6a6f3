// SPDX-License-Identifier: Apache-2.0
#include "ops/cpu/filter_order.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <set>

namespace moesaic::ops {
namespace {

at::Tensor indices(const std::vector<int32_t>& values) {
  return torch::tensor(values, torch::kInt);
}

TEST(FilterOrder, SmallWeightsAreReadInTheOrderOfTokens) {
  const at::Tensor offsets = indices({0, 2, 2, 5}), token = indices({1, 4, 0, 1, 3, 0});
  const FilterOrder order = filter_order(offsets, token, 5, 1024);
  EXPECT_EQ(order.row, (std::vector<int32_t>{2, 0, 3, 4, 1}));
  EXPECT_EQ(order.expert, (std::vector<int32_t>{2, 0, 2, 2, 0}));
  for (const int32_t token : order.next) EXPECT_LT(token, 5);
  ASSERT_EQ(order.pieces.size(), 1u);
  EXPECT_EQ(order.pieces[0].experts, 3);
  EXPECT_EQ(order.pieces[0].end, 5);
}

TEST(FilterOrder, LargeWeightsAreReadOnceForAllTheirRows) {
  const at::Tensor offsets = indices({0, 2, 2, 5}), token = indices({1, 4, 0, 1, 3, 0});
  const FilterOrder order = filter_order(offsets, token, 5, int64_t{1} << 30);
  EXPECT_EQ(order.row, (std::vector<int32_t>{0, 1, 2, 3, 4}));
  EXPECT_EQ(order.expert, (std::vector<int32_t>{0, 0, 2, 2, 2}));
  ASSERT_EQ(order.pieces.size(), 2u);
  EXPECT_EQ(order.pieces[1].expert, 2);
  EXPECT_EQ(order.pieces[1].begin, 2);
}

TEST(FilterOrder, PiecesHoldEveryRowOnce) {
  const int32_t rows = 5000;
  const at::Tensor token = torch::arange(rows, torch::kInt);
  const at::Tensor offsets = indices({0, 1200, 1201, 4000});
  for (const int64_t bytes : {int64_t{1}, int64_t{1} << 30}) {
    const FilterOrder order = filter_order(offsets, token, rows, bytes);
    std::set<int32_t> seen;
    int64_t next = 0;
    for (const FilterPiece& piece : order.pieces) {
      EXPECT_EQ(piece.begin, next);
      next = piece.end;
      for (int64_t i = piece.begin; i < piece.end; ++i) {
        EXPECT_TRUE(seen.insert(order.row[i]).second);
        EXPECT_GE(order.expert[i], piece.expert);
        EXPECT_LT(order.expert[i], piece.expert + piece.experts);
      }
    }
    EXPECT_EQ(seen.size(), 4000u);
  }
}

}  // namespace
}  // namespace moesaic::ops
