// SPDX-License-Identifier: Apache-2.0
#include "moesaic/base/pattern.h"

#include "base/support.h"
#include "moesaic/base/error.h"
#include "support/matchers.h"

namespace moesaic {
namespace {

TEST(Pattern, IsFoundAnywhereUnlessAnchored) {
  EXPECT_TRUE(Pattern("router").matches("blocks.1.moe.router.weight"));
  EXPECT_TRUE(Pattern("(bias|b[12])$").matches("experts.b1"));
  EXPECT_FALSE(Pattern("(bias|b[12])$").matches("experts.b1.x"));
  EXPECT_FALSE(Pattern("^head").matches("blocks.head"));
  EXPECT_TRUE(Pattern("").matches(""));
}

TEST(Pattern, GivesTheMatchAndItsGroups) {
  const Pattern pattern("(b)(x)?(c)");
  EXPECT_EQ(pattern.num_groups(), 3u);
  const std::string text = "abc bxc";
  const auto first = pattern.find(text), second = pattern.find(text, 2);
  EXPECT_THAT(first, ElementsAre("bc", "b", "", "c"));
  EXPECT_EQ(first[0].data() - text.data(), 1);
  EXPECT_EQ(first[2].data(), nullptr);
  EXPECT_THAT(second, ElementsAre("bxc", "b", "x", "c"));
  EXPECT_THAT(pattern.find(text, 5), IsEmpty());
  EXPECT_THAT(pattern.find(text, 99), IsEmpty());
}

TEST(Pattern, RenamesEveryMatchByItsGroups) {
  EXPECT_EQ(renamed(Pattern("(a)(x)?"), R"([\1\g<2>\\])", "abax"), R"([a\]b[ax\])");
  EXPECT_EQ(renamed(Pattern("^"), "p/", "ab"), "p/ab");
  EXPECT_THAT(test::usage_of([] { renamed(Pattern("a"), R"(\1)", "a"); }),
              HasSubstr("names group 1, the pattern has 0"));
}

// A later place is no new beginning of the text.
TEST(Pattern, IsAnchoredToTheFullText) {
  EXPECT_THAT(Pattern("^b").find("ab", 1), IsEmpty());
}

TEST(Pattern, SaysInOneLineWhatIsWrong) {
  EXPECT_EQ(Pattern::problem("a(b)*"), "");
  EXPECT_THAT(Pattern::problem("a("), HasSubstr("'a(' is not a valid regular expression"));
  EXPECT_THAT(Pattern::problem("(?=a)"), HasSubstr("'(?=a)' is not a valid regular expression"));
  EXPECT_THAT(Pattern::problem("(\n"),
              AllOf(HasSubstr("'(\\n' is not a valid regular expression"), Not(HasSubstr("\n"))));
  EXPECT_THAT(Pattern::problem("\xff("), HasSubstr("not a valid regular expression"));
}

TEST(Pattern, RefusesWhatItCannotHold) {
  EXPECT_EQ(Pattern::problem(std::string(20000, '(')),
            "a pattern of 20000 characters; at most 1000 are allowed");
  EXPECT_EQ(Pattern::problem(std::string(1000, 'a')), "");
  EXPECT_THAT(Pattern::problem("((((a{100}){100}){100}){100})"), HasSubstr("not a valid regular"));
  EXPECT_THAT(Pattern::problem("((\\pL{100}){10}){1}"), HasSubstr("too large"));
}

TEST(Pattern, ThrowsWhatItsProblemSays) {
  for (const std::string& text : {std::string("a("), std::string(1001, 'a')}) {
    EXPECT_EQ(test::usage_of([&] { const Pattern pattern(text); }), Pattern::problem(text));
  }
}

// Searching by trying every way to match would take longer than anyone lives.
TEST(Pattern, IsSearchedInLinearTime) {
  const Pattern pattern("(a*)*b");
  EXPECT_FALSE(pattern.matches(std::string(200, 'a')));
  EXPECT_TRUE(pattern.matches(std::string(200, 'a') + "b"));
}

TEST(Patterns, TheFirstOneFoundCounts) {
  const Patterns patterns({"x$", "b", "a"});
  EXPECT_EQ(patterns.first_match("ab"), 1u);
  EXPECT_EQ(patterns.first_match("a"), 2u);
  EXPECT_EQ(patterns.first_match("c"), std::nullopt);
  EXPECT_TRUE(patterns.any_matches("ax"));
  EXPECT_FALSE(Patterns({}).any_matches("a"));
}

}  // namespace
}  // namespace moesaic
