// SPDX-License-Identifier: Apache-2.0
#include "data/loader_parts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "moesaic/base/random.h"

namespace moesaic {
namespace {

using Indices = std::vector<int64_t>;

Indices equal_blocks(int64_t count, int64_t size) {
  return Indices(static_cast<size_t>(count), size);
}

TEST(EpochOrder, WithoutBlocksItIsAPermutationOfAll) {
  EpochOrders orders(20, 7);
  EXPECT_EQ(*orders.at(3), permutation(20, 7, mix64(stream_id("loader.shuffle") + 3)));
  EXPECT_EQ(orders.at(3), orders.at(3)) << "drawn once";
}

TEST(EpochOrder, OfBlocksHasEveryExampleOnce) {
  const Indices blocks = {5, 17, 1, 30, 8, 12};
  EpochOrders orders(73, 7, blocks, 16);
  Indices all(73);
  std::iota(all.begin(), all.end(), 0);
  for (const int64_t epoch : {0, 1}) {
    Indices order = *orders.at(epoch);
    std::sort(order.begin(), order.end());
    EXPECT_EQ(order, all);
  }
  EXPECT_NE(*orders.at(0), *orders.at(1));
  EXPECT_EQ(*orders.at(1), *EpochOrders(73, 7, blocks, 16).at(1));
  EXPECT_NE(*orders.at(1), *EpochOrders(73, 8, blocks, 16).at(1));
}

TEST(EpochOrder, LanesArePowersOfTwoThatDivideTheBatch) {
  EXPECT_EQ(lanes_of(1, 64), 1);
  EXPECT_EQ(lanes_of(7, 64), 4);
  EXPECT_EQ(lanes_of(100, 48), 16);
  EXPECT_EQ(lanes_of(1000, 4096), 64);
  EXPECT_EQ(lanes_of(1000, 2), 2);
  EXPECT_EQ(lanes_of(1000, 7), 1);
}

TEST(EpochOrder, PlacesOfABatchComeFromTheirLane) {
  constexpr int64_t kBatch = 8, kLanes = 4, kOfLane = kBatch / kLanes;
  const Indices blocks = {9, 9, 9, 9, 9};  // 45 examples: 5 batches and 5 examples.
  const Indices order = block_order(blocks, kBatch, 3, 4);
  // Undone, each lane runs through whole blocks: their numbers change at the ends of blocks only.
  Indices list;
  for (int64_t lane = 0; lane < kLanes; ++lane) {
    for (int64_t batch = 0; batch < 5; ++batch) {
      for (int64_t j = 0; j < kOfLane; ++j) {
        list.push_back(order[static_cast<size_t>(batch * kBatch + lane * kOfLane + j)]);
      }
    }
  }
  list.insert(list.end(), order.begin() + 40, order.end());
  std::set<int64_t> seen;
  for (size_t i = 0; i < list.size(); i += 9) {
    for (size_t j = 0; j < 9; ++j) EXPECT_EQ(list[i + j] / 9, list[i] / 9);
    EXPECT_TRUE(seen.insert(list[i] / 9).second);
    EXPECT_FALSE(std::is_sorted(list.begin() + static_cast<int64_t>(i),
                                list.begin() + static_cast<int64_t>(i) + 9));
  }
}

/// The blocks that one of `count` processes reads in an epoch.
std::set<int64_t> blocks_read(const Indices& order, int64_t batch, int64_t block, int64_t process,
                              int64_t count) {
  std::set<int64_t> read;
  for (size_t i = 0; i < order.size(); ++i) {
    const int64_t place = static_cast<int64_t>(i) % batch;
    if (place * count / batch == process) read.insert(order[i] / block);
  }
  return read;
}

TEST(EpochOrder, AProcessReadsItsPartOfTheBlocks) {
  constexpr int64_t kBatch = 32, kBlock = 64;
  const Indices order = block_order(equal_blocks(16, kBlock), kBatch, 1, 2);
  EXPECT_EQ(blocks_read(order, kBatch, kBlock, 0, 1).size(), 16u);
  for (const int64_t processes : {2, 4, 8, 16}) {
    std::set<int64_t> all;
    for (int64_t process = 0; process < processes; ++process) {
      const auto own = blocks_read(order, kBatch, kBlock, process, processes);
      EXPECT_EQ(own.size(), static_cast<size_t>(16 / processes));
      all.insert(own.begin(), own.end());
    }
    EXPECT_EQ(all.size(), 16u);
  }
}

TEST(EpochOrder, LessThanABatchIsAShuffledList) {
  Indices order = block_order({2, 3}, 16, 1, 2);
  std::sort(order.begin(), order.end());
  EXPECT_THAT(order, ::testing::ElementsAre(0, 1, 2, 3, 4));
}

}  // namespace
}  // namespace moesaic
