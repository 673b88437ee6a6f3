// SPDX-License-Identifier: Apache-2.0
#include "moesaic/base/process.h"

#include "base/support.h"
#include "support/matchers.h"

namespace moesaic {
namespace {

TEST(Memory, HasALimit) {
  EXPECT_GT(memory_limit(), 64.0 * 1024 * 1024);
  EXPECT_LT(memory_limit(), 1e18);
}

TEST(Memory, MoreThanTheMachineHasIsRefused) {
  EXPECT_NO_THROW(check_memory(1024.0, "a small thing", "here"));
  EXPECT_THAT(test::usage_of([] { check_memory(2e18, "a large thing", "here"); }),
              StartsWith("here: a large thing needs 2.00 EB of memory, this machine has "));
}

}  // namespace
}  // namespace moesaic
