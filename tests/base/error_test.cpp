// SPDX-License-Identifier: Apache-2.0
#include "moesaic/base/error.h"

#include "base/support.h"
#include "moesaic/base/text.h"
#include "support/matchers.h"

namespace moesaic {
namespace {

TEST(Error, CarriesMessageKindAndExitCode) {
  const Error usage(ErrorKind::usage, "no such key");
  EXPECT_STREQ(usage.what(), "no such key");
  EXPECT_EQ(usage.kind(), ErrorKind::usage);
  EXPECT_EQ(usage.exit_code(), 2);
  EXPECT_EQ(Error(ErrorKind::failure, "disk full").exit_code(), 1);
}

TEST(Error, QuotesOfAHugeWordBothEnds) {
  const std::string umlauts = "\xC3\xA4\xC3\xB6", path = [&] {
    std::string text = "/begin/";
    while (text.size() < 60'000) text += umlauts;
    return text + "/end";
  }();
  const std::string said = test::usage_of([&] { fail_usage("{}: no such file; see list", path); });
  EXPECT_LT(said.size(), 200U);
  EXPECT_TRUE(said.starts_with("/begin/" + umlauts)) << said;
  EXPECT_TRUE(said.ends_with("/end: no such file; see list")) << said;
  EXPECT_THAT(said, HasSubstr("..."));
  EXPECT_EQ(find_invalid_utf8(said), std::nullopt);
  const std::string word(200, 'x'), spaces(60'000, ' ');
  EXPECT_EQ(test::failure_of([&] { fail("{} {}", word, word); }), word + " " + word);
  EXPECT_LT(test::failure_of([&] { fail("'{}'", spaces); }).size(), 4000U);
}

TEST(Error, FailFormatsItsArguments) {
  EXPECT_EQ(test::failure_of([] { fail("{}: {} of {}", "file", 3, 7); }), "file: 3 of 7");
  EXPECT_EQ(test::usage_of([] { fail_usage("bad '{}'", "key"); }), "bad 'key'");
}

}  // namespace
}  // namespace moesaic
