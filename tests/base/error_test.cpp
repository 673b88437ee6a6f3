// SPDX-License-Identifier: Apache-2.0
#include "moesaic/base/error.h"

#include <gtest/gtest.h>

#include "base/support.h"

namespace moesaic {
namespace {

TEST(Error, CarriesMessageKindAndExitCode) {
  const Error usage(ErrorKind::usage, "no such key");
  EXPECT_STREQ(usage.what(), "no such key");
  EXPECT_EQ(usage.kind(), ErrorKind::usage);
  EXPECT_EQ(usage.exit_code(), 2);
  EXPECT_EQ(Error(ErrorKind::failure, "disk full").exit_code(), 1);
}

TEST(Error, FailFormatsItsArguments) {
  EXPECT_EQ(test::failure_of([] { fail("{}: {} of {}", "file", 3, 7); }), "file: 3 of 7");
  EXPECT_EQ(test::usage_of([] { fail_usage("bad '{}'", "key"); }), "bad 'key'");
}

}  // namespace
}  // namespace moesaic
