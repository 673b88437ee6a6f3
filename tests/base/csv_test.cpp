// SPDX-License-Identifier: Apache-2.0
#include "moesaic/base/text.h"

#include <gtest/gtest.h>

namespace moesaic {
namespace {

TEST(CsvLine, QuotesWhatWouldSplitAFieldOrALine) {
  EXPECT_EQ(csv_line({"", "a b", "1,5", "say \"x\"", "two\nlines"}),
            ",a b,\"1,5\",\"say \"\"x\"\"\",\"two\nlines\"\n");
}

}  // namespace
}  // namespace moesaic
