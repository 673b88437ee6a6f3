// SPDX-License-Identifier: Apache-2.0
#include "ops/cpu/filter_layer.h"

#include <gtest/gtest.h>

#include <vector>

namespace moesaic::ops {
namespace {

TEST(FilterPieces, CoverTheRowsOfEveryExpertInOrder) {
  const std::vector<int32_t> offsets = {3, 3, 1030, 1030, 4000, 4001};
  int64_t row = 3, last_expert = 0;
  for (const FilterPiece& piece : filter_pieces(offsets.data(), 5)) {
    EXPECT_EQ(piece.begin, row);
    EXPECT_GT(piece.end, piece.begin);
    EXPECT_GE(piece.expert, last_expert);
    EXPECT_GE(piece.begin, offsets[piece.expert]);
    EXPECT_LE(piece.end, offsets[piece.expert + 1]);
    row = piece.end;
    last_expert = piece.expert;
  }
  EXPECT_EQ(row, 4001);
}

TEST(FilterPieces, NoRowsMakeNone) {
  const std::vector<int32_t> offsets = {0, 0, 0};
  EXPECT_TRUE(filter_pieces(offsets.data(), 2).empty());
}

}  // namespace
}  // namespace moesaic::ops
