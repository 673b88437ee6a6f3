// SPDX-License-Identifier: Apache-2.0
#include "moesaic/base/checked_math.h"

#include <gtest/gtest.h>

namespace moesaic {
namespace {

constexpr uint64_t kMax = UINT64_MAX;

TEST(CheckedMath, GivesResultsThatFit) {
  EXPECT_EQ(checked_add(kMax - 1, 1), kMax);
  EXPECT_EQ(checked_add(0, 0), 0u);
  EXPECT_EQ(checked_mul(1ULL << 32, (1ULL << 32) - 1), (1ULL << 32) * ((1ULL << 32) - 1));
  EXPECT_EQ(checked_mul(kMax, 1), kMax);
  EXPECT_EQ(checked_mul(0, kMax), 0u);
  EXPECT_EQ(checked_mul(kMax, 0), 0u);
}

TEST(CheckedMath, GivesNothingOnOverflow) {
  EXPECT_EQ(checked_add(kMax, 1), std::nullopt);
  EXPECT_EQ(checked_add(1, kMax), std::nullopt);
  EXPECT_EQ(checked_mul(1ULL << 32, 1ULL << 32), std::nullopt);
  EXPECT_EQ(checked_mul(3, kMax / 2), std::nullopt);
}

}  // namespace
}  // namespace moesaic
