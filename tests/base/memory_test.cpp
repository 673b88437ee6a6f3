// SPDX-License-Identifier: Apache-2.0
#include "moesaic/base/memory.h"

#include <gtest/gtest.h>

namespace moesaic {
namespace {

TEST(Memory, HasALimit) {
  EXPECT_GT(memory_limit(), 64.0 * 1024 * 1024);
  EXPECT_LT(memory_limit(), 1e18);
}

TEST(Memory, IsWrittenInTheLargestUnit) {
  EXPECT_EQ(bytes_text(12), "12 bytes");
  EXPECT_EQ(bytes_text(1536), "1.5 KiB");
  EXPECT_EQ(bytes_text(4.0 * 1024 * 1024 * 1024 * 1024), "4.0 TiB");
}

}  // namespace
}  // namespace moesaic
