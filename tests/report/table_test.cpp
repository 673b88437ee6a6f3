// SPDX-License-Identifier: Apache-2.0
#include "moesaic/report/results.h"

#include <gtest/gtest.h>

#include "moesaic/base/error.h"

namespace moesaic {
namespace {

TextTable fruit() {
  TextTable table({"fruit", "kind", "number"}, 2);
  table.add({"apple", "Elstar", "7"});
  table.add({"fig", "", "12345678"});
  return table;
}

TEST(TextTable, AlignsTextToTheLeftAndNumbersToTheRight) {
  EXPECT_EQ(fruit().text(),
            "fruit  kind      number\n"
            "apple  Elstar         7\n"
            "fig            12345678\n");
}

TEST(TextTable, NoLineEndsInASpace) {
  TextTable table({"name", "note"}, 2);
  table.add({"a", "long note"});
  table.add({"b", ""});
  EXPECT_EQ(table.text(), "name  note\na     long note\nb\n");
}

TEST(TextTable, MarkdownSaysWhereColumnsStand) {
  EXPECT_EQ(fruit().markdown(),
            "| fruit | kind   |   number |\n"
            "|-------|--------|---------:|\n"
            "| apple | Elstar |        7 |\n"
            "| fig   |        | 12345678 |\n");
}

TEST(TextTable, ABarDoesNotEndACellOfMarkdown) {
  TextTable table({"a|b"});
  EXPECT_EQ(table.markdown(), "| a/b |\n|-----|\n");
  EXPECT_EQ(table.text(), "a|b\n");
}

TEST(TextTable, RefusesARowOfAnotherLength) {
  TextTable table({"a", "b"});
  EXPECT_THROW(table.add({"1"}), Error);
  EXPECT_THROW(table.add({"1", "2", "3"}), Error);
  EXPECT_EQ(table.text(), "a  b\n");
}

TEST(WithCommas, GroupsDigitsByThree) {
  EXPECT_EQ(with_commas(0), "0");
  EXPECT_EQ(with_commas(999), "999");
  EXPECT_EQ(with_commas(1000), "1,000");
  EXPECT_EQ(with_commas(1234567), "1,234,567");
  EXPECT_EQ(with_commas(-123), "-123");
  EXPECT_EQ(with_commas(-123456), "-123,456");
}

}  // namespace
}  // namespace moesaic
