// SPDX-License-Identifier: Apache-2.0
#include "moesaic/ops/parallel_panels.h"

#include <gtest/gtest.h>

#include <vector>

namespace moesaic::ops {
namespace {

TEST(Panels, CoverEveryColumnOfEveryExpertThatHasRows) {
  const std::vector<int32_t> offsets = {0, 0, 500, 507, 507};
  const std::vector<Panel> panels = panels_of(offsets.data(), 4, 100, 40);
  ASSERT_EQ(panels.size(), 6U);
  for (size_t i = 0; i < panels.size(); ++i) {
    const int64_t expert = i < 3 ? 1 : 2, column = static_cast<int64_t>(i % 3) * 40;
    EXPECT_EQ(panels[i].expert, expert);
    EXPECT_EQ(panels[i].begin, offsets[expert]);
    EXPECT_EQ(panels[i].end, offsets[expert + 1]);
    EXPECT_EQ(panels[i].column, column);
    EXPECT_EQ(panels[i].columns, std::min<int64_t>(40, 100 - column));
  }
}

TEST(Panels, AreComputedOnceEachWithMemoryOfTheirThread) {
  const std::vector<int32_t> offsets = {0, 3, 9};
  const std::vector<Panel> panels = panels_of(offsets.data(), 2, 50, 7);
  std::vector<int> seen(100);
  for_panels(panels, 100, [&](const Panel& panel, uint8_t* memory) {
    Scratch scratch(memory);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(scratch.take<float>(3)) % 64, 0U);
    EXPECT_EQ(scratch.taken(), 64);
    for (int64_t j = 0; j < panel.columns; ++j) ++seen[panel.expert * 50 + panel.column + j];
  });
  EXPECT_EQ(seen, std::vector<int>(100, 1));
}

}  // namespace
}  // namespace moesaic::ops
