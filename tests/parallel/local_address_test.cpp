// SPDX-License-Identifier: Apache-2.0
#include "moesaic/parallel/launch.h"

#include <gtest/gtest.h>

namespace moesaic {
namespace {

TEST(LocalAddress, IsTheOneThatLeadsThere) {
  EXPECT_EQ(local_address_for("127.0.0.1", 29500), "127.0.0.1");
  EXPECT_EQ(local_address_for("127.0.0.5", 29500), "127.0.0.1") << "another one of loopback";
  EXPECT_EQ(local_address_for("", 29500), "") << "threads of one process have no host";
}

}  // namespace
}  // namespace moesaic
