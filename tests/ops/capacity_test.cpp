// SPDX-License-Identifier: Apache-2.0
#include "moesaic/ops/route_options.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "moesaic/base/error.h"

namespace moesaic {
namespace {

TEST(ExpertCapacity, FollowsTheReferenceTable) {
  std::ifstream file(MOESAIC_TEST_SOURCE_DIR "/tests/golden/capacity.json");
  const auto table = nlohmann::json::parse(file);
  for (const auto& row : table.at("rows")) {
    const int64_t multiple = row[4].is_null() ? 1 : row[4].get<int64_t>();
    const CapacityRule rule{row[2].get<double>(),
                            row[3] == "round" ? CapacityRounding::round : CapacityRounding::ceil,
                            multiple};
    const auto capacity = [&] { return expert_capacity(row[0], 1, rule, row[1]); };
    if (row[5].is_null()) {
      EXPECT_THROW(capacity(), Error) << row;
    } else {
      EXPECT_EQ(capacity(), row[5].get<int64_t>()) << row;
    }
  }
  EXPECT_EQ(table.at("rows").size(), 450u);
}

TEST(ExpertCapacity, CountsChoices) {
  EXPECT_EQ(expert_capacity(68, 2, {1.5}, 8), 28);  // ceil(25.5) = 26, raised to 28
  EXPECT_EQ(expert_capacity(520, 2, {1.05}, 8), 140);
  EXPECT_THROW(expert_capacity(0, 1, {1.0}, 8), Error);
  EXPECT_THROW(expert_capacity(8, 1, CapacityRule{1.0, CapacityRounding::ceil, 0}, 8), Error);
  EXPECT_GT(expert_capacity(int64_t{1} << 40, 8, {1e300}, 1), int64_t{1} << 40);
}

TEST(ExpertCapacity, RoundsHalvesToTheEvenNumber) {
  const CapacityRule rule{1.0, CapacityRounding::round, 1};
  EXPECT_EQ(expert_capacity(5, 1, rule, 2), 2);
  EXPECT_EQ(expert_capacity(7, 1, rule, 2), 4);
  EXPECT_EQ(expert_capacity(11, 1, rule, 4), 3);
}

}  // namespace
}  // namespace moesaic
