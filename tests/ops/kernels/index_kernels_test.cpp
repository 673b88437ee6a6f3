// SPDX-License-Identifier: Apache-2.0
// The index arithmetic that the GPU's kernels are made of, against plain loops.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

#include "ops/kernels/expert_rows.h"
#include "ops/kernels/route_rows.h"
#include "ops/kernels/scan.h"
#include "ops/kernels/select.h"
#include "support/serial_device.h"

namespace moesaic::ops::kernels {
namespace {

using moesaic::testing::kOrders;

TEST(RowTiles, CoverEveryRowOnceWithinTheBound) {
  std::mt19937 random(1);
  for (int trial = 0; trial < 300; ++trial) {
    const int experts = 1 + static_cast<int>(random() % 9), height = 1 << (random() % 7);
    std::vector<int32_t> offsets(experts + 1, 0);
    for (int e = 0; e < experts; ++e) {
      const int32_t rows = random() % 3 == 0 ? 0 : static_cast<int32_t>(random() % 200);
      offsets[e + 1] = offsets[e] + rows;
    }
    const int64_t rows = offsets[experts] + static_cast<int64_t>(random() % 50);
    std::vector<int> covered(rows, 0);
    for (int64_t i = 0; i < row_tile_bound(rows, experts, height); ++i) {
      const RowTile tile = row_tile(offsets.data(), experts, height, i);
      ASSERT_GE(tile.begin, offsets[tile.expert]);
      ASSERT_LE(tile.end, offsets[tile.expert + 1]);
      ASSERT_LE(tile.end - tile.begin, height);
      for (int32_t r = tile.begin; r < tile.end; ++r) ++covered[r];
    }
    for (int64_t r = 0; r < rows; ++r) ASSERT_EQ(covered[r], r < offsets[experts] ? 1 : 0);
  }
}

/// Scans twice, so that a barrier that is missing between two uses of shared memory shows.
struct ScanTwice {
  std::vector<int32_t>* values;
  std::vector<int32_t>* totals;

  template <class Block>
  void operator()(Block& block) const {
    for (int pass = 0; pass < 2; ++pass) {
      totals->push_back(exclusive_scan(
          block, block.template shared<int32_t>(0), static_cast<int64_t>(values->size()),
          [&](int64_t i) { return (*values)[i]; },
          [&](int64_t i, int32_t sum) { (*values)[i] = sum; }));
    }
  }
};

TEST(Scan, SumsWhatComesBeforeOverAnyLength) {
  for (const auto order : kOrders) {
    for (const int threads : {1, 32, 96, 256}) {
      for (const size_t count : {0U, 1U, 31U, 256U, 1000U}) {
        std::vector<int32_t> values(count), totals;
        std::iota(values.begin(), values.end(), -7);
        std::vector<int32_t> wanted = values;
        int32_t sums[2];
        for (int32_t& sum : sums) {
          sum = std::accumulate(wanted.begin(), wanted.end(), 0);
          std::exclusive_scan(wanted.begin(), wanted.end(), wanted.begin(), 0);
        }
        run_serially(ScanTwice{&values, &totals}, 1, threads,
                     static_cast<size_t>(scan_bytes(threads)), order);
        EXPECT_EQ(values, wanted);
        EXPECT_EQ(totals, std::vector<int32_t>(sums, sums + 2));
      }
    }
  }
}

/// Queues of the same values, of which each but the first accepts one candidate more.
template <class Scalar>
struct VectorQueues {
  const std::vector<Scalar>* values;
  int64_t first;
  int32_t least;

  struct Queue {
    const std::vector<Scalar>* values;
    int64_t first, size;
    int32_t rank;
    PlaceDigits digits;

    QueueEntry place(int64_t i) const {
      return QueueEntry::of((*values)[static_cast<size_t>(i)], first + i);
    }
  };

  int64_t count() const { return 2; }
  static PlaceDigits digits(int64_t size, int64_t begin = 0) {
    return PlaceDigits::of(sizeof(Scalar), begin, size);
  }
  Queue at(int64_t queue) const {
    const auto size = static_cast<int64_t>(values->size());
    return {values, first, size, least + static_cast<int32_t>(queue), digits(size, first)};
  }
};

/// Borders by one block for a queue, and by several.
template <class Scalar>
std::vector<std::vector<Border>> all_borders(const VectorQueues<Scalar>& queues, Order order) {
  constexpr int64_t kParts = 3;
  constexpr int kThreads = 256;
  const auto count = static_cast<size_t>(queues.count());
  const auto bytes = static_cast<size_t>(select_bytes(kThreads));
  std::vector<Border> alone(count), shared(count);
  run_serially(SelectBorders<VectorQueues<Scalar>>{queues, alone.data()}, queues.count(), kThreads,
               bytes, order);
  const auto digits = queues.at(0).digits.count();
  std::vector<int32_t> histograms(static_cast<size_t>(digits) * count * kDigits, 0);
  std::vector<SelectState> states(static_cast<size_t>(digits + 1) * count);
  for (int digit = 0; digit <= digits; ++digit) {
    run_serially(SelectDigit<VectorQueues<Scalar>>{queues, digit, kParts, histograms.data(),
                                                   states.data(), shared.data()},
                 queues.count() * kParts, kThreads, bytes, order);
  }
  return {alone, shared};
}

template <class Scalar>
void expect_selection(std::mt19937& random, size_t count, int distinct, int64_t first) {
  std::vector<Scalar> values(count);
  for (Scalar& value : values) {
    value = static_cast<Scalar>(static_cast<int>(random() % distinct) - distinct / 2) / Scalar(3);
    if (value == 0 && random() % 2 == 0) value = -value;  // both zeros are one value
  }
  std::vector<QueueEntry> queue;
  VectorQueues<Scalar> queues{&values, first, 0};
  for (size_t i = 0; i < count; ++i) {
    queue.push_back(QueueEntry::of(values[i], first + static_cast<int64_t>(i)));
  }
  std::ranges::sort(queue, {}, [](const QueueEntry& at) { return std::pair(at.key, at.token); });
  const size_t step = std::max<size_t>(1, queue.size() / 7);
  for (size_t rank = 1; rank < queue.size(); rank += step) {
    queues.least = static_cast<int32_t>(rank);
    for (const auto order : kOrders) {
      for (const auto& borders : all_borders(queues, order)) {
        for (size_t i = 0; i < queue.size(); ++i) {
          ASSERT_EQ(borders[0].accepts(queue[i]), i < rank) << "rank " << rank << ", place " << i;
          ASSERT_EQ(borders[1].accepts(queue[i]), i < rank + 1) << rank << ", place " << i;
        }
      }
    }
  }
}

TEST(Select, AcceptsExactlyTheFirstOfAQueueWithTies) {
  std::mt19937 random(2);
  for (const size_t count : {1U, 5U, 255U, 258U, 700U}) {
    for (const int distinct : {1, 2, 40, 1000000}) {
      for (const int64_t first : {int64_t{0}, int64_t{123456789}}) {
        expect_selection<float>(random, count, distinct, first);
        expect_selection<double>(random, count, distinct, first);
      }
    }
  }
}

TEST(KeptExperts, AreNumberedInTheirOrder) {
  const std::vector<int32_t> kept = {0, 31, 32, 63, 64, 99};
  std::vector<int32_t> slot_of(100, 7), columns(kept.size());
  ExpandKept kernel{};
  for (const int32_t e : kept) kernel.bits[e / 32] |= uint32_t{1} << (e % 32);
  kernel.experts = 100;
  kernel.slot_of = slot_of.data();
  kernel.columns = columns.data();
  run_serially(kernel, 1, 64, 0, Order::shuffled);
  EXPECT_EQ(columns, kept);
  for (int32_t e = 0; e < 100; ++e) {
    const auto found = std::find(kept.begin(), kept.end(), e);
    EXPECT_EQ(slot_of[e], found == kept.end() ? -1 : static_cast<int32_t>(found - kept.begin()));
  }
}

}  // namespace
}  // namespace moesaic::ops::kernels
