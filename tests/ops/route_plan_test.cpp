// SPDX-License-Identifier: Apache-2.0
#include "ops/route_plan.h"

#include <gtest/gtest.h>

#include <limits>

#include "moesaic/base/error.h"

namespace moesaic::ops {
namespace {

TEST(TokenGroups, CoverTheTokensOnce) {
  for (const int64_t tokens : {0, 1, 7, 8, 9, 64}) {
    for (const int64_t size : {0, 1, 4, 8, 100}) {
      const TokenGroups cut(tokens, size);
      int64_t next = 0;
      for (int64_t group = 0; group < cut.count(); ++group) {
        EXPECT_EQ(cut.begin(group), next);
        EXPECT_GT(cut.size(group), 0);
        EXPECT_LE(cut.size(group), size > 0 ? size : tokens);
        for (int64_t t = next; t < cut.end(group); ++t) EXPECT_EQ(cut.of(t), group);
        next = cut.end(group);
      }
      EXPECT_EQ(next, tokens);
    }
  }
}

TEST(TokenGroups, CountBeyondThirtyTwoBits) {
  const TokenGroups cut(int64_t{1} << 40, 3);
  EXPECT_EQ(cut.count(), ((int64_t{1} << 40) + 2) / 3);
  EXPECT_EQ(cut.end(cut.count() - 1), int64_t{1} << 40);
  EXPECT_EQ(TokenGroups(5, std::numeric_limits<int64_t>::max()).count(), 1);
}

TEST(Segments, CoverTheTokensOnceAndNeverCrossGroups) {
  for (const int64_t tokens : {0, 1, 255, 256, 257, 2000}) {
    for (const int64_t size : {0, 1, 65, 256, 300, 1999}) {
      const Segments segments(TokenGroups(tokens, size), 256);
      int64_t next = 0;
      for (int64_t s = 0; s < segments.count(); ++s) {
        EXPECT_EQ(segments.begin(s), next);
        EXPECT_GT(segments.end(s), next);
        EXPECT_LE(segments.end(s) - next, 256);
        EXPECT_EQ(segments.cut.of(segments.begin(s)), segments.group(s));
        EXPECT_EQ(segments.cut.of(segments.end(s) - 1), segments.group(s));
        next = segments.end(s);
      }
      EXPECT_EQ(next, tokens);
    }
  }
}

TEST(GroupRows, AreCapacitiesWithAnOwnOneForTheTail) {
  const TokenGroups cut(100, 40);  // 40, 40, 20
  const GroupRows rows = capacity_rows(cut, 2, {1.0}, 8);
  EXPECT_EQ(rows.of(0), 12);  // ceil(10) raised to 12
  EXPECT_EQ(rows.of(1), 12);
  EXPECT_EQ(rows.of(2), 8);  // 5, raised to 8
  EXPECT_EQ(rows.total(), 32);
  EXPECT_TRUE(rows.has_capacity(cut));
  EXPECT_FALSE(capacity_rows(cut, 2, {0.0}, 8).has_capacity(cut));
  EXPECT_EQ(capacity_rows(cut, 2, {0.0}, 8).total(), 100);
  EXPECT_FALSE(capacity_rows(cut, 2, {1e300}, 8).has_capacity(cut));
  EXPECT_EQ(capacity_rows(TokenGroups(0, 4), 2, {1.0}, 8).total(), 0);
}

TEST(GroupRows, LimitWhereOnlyTheTailDoes) {
  // Groups of 4 fit their capacity of 4 always; a single group of 9 does not.
  EXPECT_FALSE(capacity_rows(TokenGroups(9, 4), 1, {0.1}, 4).has_capacity(TokenGroups(9, 4)));
  EXPECT_TRUE(capacity_rows(TokenGroups(9, 0), 1, {0.1}, 4).has_capacity(TokenGroups(9, 0)));
}

TEST(GroupRows, ExpertChoiceTakesTheGivenRowsOrACapacityWithoutK) {
  const TokenGroups cut(30, 10);
  EXPECT_EQ(expert_choice_rows(cut, {.kind = RoutingKind::expert_choice, .l = 3}, 5).total(), 9);
  RouteOptions options{.kind = RoutingKind::expert_choice,
                       .gate = Gate::softmax_selected,
                       .capacity = {.factor = 2.0},
                       .kept = {0, 4}};
  EXPECT_EQ(expert_choice_rows(cut, options, 5).total(), 12);  // 10 * 2 / 5 = 4
  options.capacity.multiple_of = 3;
  EXPECT_EQ(expert_choice_rows(cut, options, 5).total(), 18);
  options.pruned = PrunedSelection::reroute;
  EXPECT_EQ(expert_choice_rows(cut, options, 5).total(), 30);  // 10 * 2 / 2 = 10 = all
}

TEST(Accepted, FillsWhatRoomIsLeft) {
  EXPECT_EQ(accepted(0, 5, 8), 5);
  EXPECT_EQ(accepted(6, 5, 8), 2);
  EXPECT_EQ(accepted(8, 5, 8), 0);
  EXPECT_EQ(accepted(20, 5, 8), 0);
  EXPECT_EQ(accepted(8, 0, 8), 0);
}

TEST(TokenChoiceSizes, BoundRowsByTheLesserOfChoicesAndCapacities) {
  RouteOptions options{.k = 2, .group_size = 40};
  EXPECT_EQ(TokenChoiceSizes(100, 8, options).bound, 200);
  options.k = 3;
  options.kept = {0, 5};
  EXPECT_EQ(TokenChoiceSizes(100, 8, options).bound, 200);
  options = {.k = 2, .capacity = {.factor = 1.0}, .group_size = 40, .kept = {0, 3, 7}};
  const TokenChoiceSizes sizes(100, 8, options);
  EXPECT_EQ(sizes.bound, 3 * 32);
  EXPECT_TRUE(sizes.is_limited);
}

TEST(TokenChoiceSizes, HaveOneGroupWhereNothingIsDropped) {
  const TokenChoiceSizes sizes(100, 8, {.k = 2, .group_size = 40});
  EXPECT_FALSE(sizes.is_limited);
  EXPECT_EQ(sizes.cut.count(), 1);
  EXPECT_EQ(sizes.rows.total(), 100);
}

}  // namespace
}  // namespace moesaic::ops
