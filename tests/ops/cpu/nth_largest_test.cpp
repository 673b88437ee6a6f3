// SPDX-License-Identifier: Apache-2.0
#include "ops/cpu/nth_largest.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <random>

namespace moesaic::ops {
namespace {

template <class Key>
void check_borders(Key max) {
  std::mt19937_64 random(3);
  for (const int64_t size : {1, 2, 31, 32, 33, 65, 200}) {
    KeyRow<Key> row;
    row.resize(size);
    // Few different keys for some sizes, so that many are equal.
    const Key different = size % 2 == 0 ? 5 : max;
    for (int64_t i = 0; i < size; ++i) row.keys[i] = static_cast<Key>(random() % different);
    std::vector<Key> sorted(row.keys.begin(), row.keys.begin() + size);
    std::sort(sorted.begin(), sorted.end(), std::greater<>());
    for (int64_t n = 1; n <= size; ++n) {
      const KeyBorder<Key> border = border_of_largest(row, n);
      EXPECT_EQ(border.key, sorted[n - 1]);
      const auto above =
          std::count_if(sorted.begin(), sorted.end(), [&](Key key) { return key > border.key; });
      EXPECT_EQ(border.equal, n - above);
    }
  }
}

TEST(NthLargest, BorderEqualsThatOfASort) {
  check_borders<uint32_t>(0xFFFFFFFFu);
  check_borders<uint64_t>(0xFFFFFFFFFFFFFFFFu);
}

TEST(NthLargest, LargestKeyOfAll) {
  KeyRow<uint32_t> row;
  row.resize(3);
  row.keys[0] = row.keys[2] = 0xFFFFFFFFu;
  row.keys[1] = 7;
  EXPECT_EQ(border_of_largest(row, 1).key, 0xFFFFFFFFu);
  EXPECT_EQ(border_of_largest(row, 1).equal, 1);
  EXPECT_EQ(border_of_largest(row, 3).key, 7u);
}

}  // namespace
}  // namespace moesaic::ops
