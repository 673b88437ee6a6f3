// SPDX-License-Identifier: Apache-2.0
#include "moesaic/base/suggestions.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace moesaic {
namespace {

TEST(LooksAlike, KnowsFormsSpacesAndLettersOfOtherAlphabets) {
  EXPECT_TRUE(looks_alike("caf\u00e9", "cafe\u0301"));  // composed, decomposed
  EXPECT_TRUE(looks_alike("hot dog", "hot\u00a0dog"));  // a space that does not break
  EXPECT_TRUE(looks_alike("hot\u2009dog", "hot\u00a0dog"));
  EXPECT_TRUE(looks_alike("cat", "\u0441at"));   // Cyrillic
  EXPECT_TRUE(looks_alike("cat", "\ufeffcat"));  // a byte order mark
  EXPECT_TRUE(looks_alike("cat", "ca\u200bt"));
  EXPECT_TRUE(looks_alike("cat", "cat "));
  EXPECT_TRUE(looks_alike("cat", "\u00a0cat"));
}

TEST(LooksAlike, IsFalseForWhatDiffersToTheEye) {
  EXPECT_FALSE(looks_alike("cat", "cat"));
  EXPECT_FALSE(looks_alike("cat", "cot"));
  EXPECT_FALSE(looks_alike("cat", "cats"));
  EXPECT_FALSE(looks_alike("\u732b", "\u72ac"));
  EXPECT_FALSE(looks_alike("dog", "\u732b\u732b\u732b"));
  EXPECT_FALSE(looks_alike("caf\xe9", "cafe"));  // Latin-1
  EXPECT_FALSE(looks_alike("", "a"));
  EXPECT_FALSE(looks_alike("hotdog", "hot dog"));
}

TEST(Lookalikes, AreAllPairsEachOnce) {
  const std::vector<std::string> names = {"cat", "caf\u00e9", "cat ", "cafe\u0301", "dog", " cat"};
  const std::vector<std::pair<size_t, size_t>> pairs = {{0, 2}, {0, 5}, {1, 3}, {2, 5}};
  EXPECT_EQ(lookalikes(names), pairs);
  EXPECT_TRUE(lookalikes(std::vector<std::string>(1001, "caf\u00e9 ")).empty());
}

TEST(Disambiguated, SpellsOutWhatLooksLikeAnotherName) {
  const std::vector<std::string> shown = {"cat", "caf\\u{e9}", "cafe\\u{301}", "na\u00efve"};
  EXPECT_EQ(disambiguated({"cat", "caf\u00e9", "cafe\u0301", "na\u00efve"}), shown);
}

TEST(SpelledOut, ShowsCodePoints) {
  EXPECT_EQ(spelled_out("cafe\u0301 \u732b \U0001f600"), "cafe\\u{301} \\u{732b} \\u{1f600}");
  EXPECT_EQ(spelled_out("caf\xe9\n"), "caf\\xe9\\n");
  EXPECT_EQ(spelled_out(" hot dog "), "\\u{20}hot dog\\u{20}");
  EXPECT_EQ(spelled_out(" "), "\\u{20}");
}

TEST(DidYouMean, ShowsHowNamesDifferThatLookAlike) {
  const std::vector<std::string> names = {"cat", "caf\u00e9"};
  EXPECT_EQ(did_you_mean("cafe\u0301", names),
            "did you mean 'caf\u00e9' (caf\\u{e9}, not cafe\\u{301})?");
}

}  // namespace
}  // namespace moesaic
