// SPDX-License-Identifier: Apache-2.0
#include "moesaic/base/text.h"

#include <gtest/gtest.h>

namespace moesaic {
namespace {

TEST(Text, InvalidUtf8IsFoundAtItsFirstByte) {
  EXPECT_FALSE(find_invalid_utf8("a\xC3\xA4\xE2\x82\xAC\xF0\x9F\x98\x80"));
  EXPECT_EQ(find_invalid_utf8("ab\x80"), 2U);
  EXPECT_EQ(find_invalid_utf8("a\xC0\xAF"), 1U);          // overlong
  EXPECT_EQ(find_invalid_utf8("\xED\xA0\x80"), 0U);       // a surrogate
  EXPECT_EQ(find_invalid_utf8("a\xF4\x90\x80\x80"), 1U);  // past U+10FFFF
  for (const char* cut : {"a\xC3", "a\xE2\x82", "a\xF0\x9F\x98", "a\xF0\x9F\x98 "}) {
    EXPECT_EQ(find_invalid_utf8(cut), 1U);
  }
}

TEST(Text, AByteOrderMarkIsDroppedAtTheBeginningAlone) {
  EXPECT_EQ(without_byte_order_mark("\xEF\xBB\xBF"
                                    "cat"),
            "cat");
  EXPECT_EQ(without_byte_order_mark("cat\xEF\xBB\xBF"), "cat\xEF\xBB\xBF");
  EXPECT_EQ(without_byte_order_mark("\xEF\xBB"), "\xEF\xBB");
  EXPECT_EQ(without_byte_order_mark(""), "");
}

TEST(Text, ManyNamesAreTheFirstFew) {
  EXPECT_EQ(quoted_names({"b", "a"}), "'a', 'b'");
  EXPECT_EQ(quoted_names({"f", "e", "d", "c", "b", "a"}), "'a', 'b', 'c', 'd', 'e', ...");
}

TEST(Text, CharactersAreCountedAndNotBytes) {
  EXPECT_EQ(count_characters(""), 0U);
  EXPECT_EQ(count_characters("a\xC3\xA4\xE2\x82\xAC"), 3U);
}

TEST(Text, MessagesGetOneShortLine) {
  EXPECT_EQ(one_line("a\nb\x1b\x7f"), "a\\nb\\x1b\\x7f");
  EXPECT_EQ(printable("a b"), "'a b'");
  EXPECT_EQ(printable(std::string(500, 'x')), "'" + std::string(80, 'x') + "...'");
  // No character is cut into pieces, and bytes that are none do not make it longer.
  EXPECT_EQ(one_line(std::string(119, 'x') + "\xC3\xA4 and more"), std::string(119, 'x') + "...");
  EXPECT_EQ(one_line(std::string(100'000, '\x80')), "...");
}

TEST(Text, CommandsOfTerminalsAreEscaped) {
  EXPECT_EQ(escaped("a\x1b]0;title\x07"
                    "b\r\n"),
            "a\\x1b]0;title\\x07"
            "b\\x0d\\n");
  // U+009B is what ESC [ is in one character; as a byte alone it is that outside of UTF-8.
  EXPECT_EQ(escaped("\xC2\x9B"
                    "2J \x9B"
                    "2J"),
            "\\xc2\\x9b"
            "2J \\x9b"
            "2J");
  EXPECT_EQ(escaped("\xC3\xA4 \xE2\x82\xAC\xC2\xA0"), "\xC3\xA4 \xE2\x82\xAC\xC2\xA0");
  EXPECT_EQ(escaped("a\tb\n\x7f", "\n\t"), "a\tb\n\\x7f");
  EXPECT_EQ(escaped(std::string(1, '\0')), "\\x00");
  // A mark that turns the direction of what follows.
  EXPECT_EQ(escaped("a\xE2\x80\xAE"
                    "b"),
            "a\\xe2\\x80\\xae"
            "b");
}

TEST(Text, BytesKeepThreeDigits) {
  EXPECT_EQ(bytes_text(0), "0 B");
  EXPECT_EQ(bytes_text(999), "999 B");
  EXPECT_EQ(bytes_text(999.6), "1.00 KB");
  EXPECT_EQ(bytes_text(1000), "1.00 KB");
  EXPECT_EQ(bytes_text(9994), "9.99 KB");
  EXPECT_EQ(bytes_text(9996), "10.0 KB");
  EXPECT_EQ(bytes_text(99960), "100 KB");
  EXPECT_EQ(bytes_text(123456), "123 KB");
  EXPECT_EQ(bytes_text(999400), "999 KB");
  EXPECT_EQ(bytes_text(999600), "1.00 MB");
  EXPECT_EQ(bytes_text(3264512), "3.26 MB");
  EXPECT_EQ(bytes_text(7e15), "7.00 PB");
  EXPECT_EQ(bytes_text(7e21), "7000 EB");
}

TEST(Numbered, BeginsAtOne) {
  EXPECT_EQ(numbered("expert ", 2), (std::vector<std::string>{"expert 1", "expert 2"}));
  EXPECT_TRUE(numbered("w", 0).empty());
}

TEST(Url, SecretsAreUsersAndQueriesWithTokens) {
  for (const char* url : {"https://u:p@x.y/a", "https://u@x.y", "u@x.y/a", "https://x.y/a?Token=1",
                          "https://x.y/a?b=1&api_key=2", "https://x.y/a?key=2"}) {
    EXPECT_TRUE(has_secret(url)) << url;
  }
  for (const char* url : {"https://x.y/a@b", "https://x.y/a?b=1", "hf://datasets/owner/name@main/a",
                          "https://x.y/token", ""}) {
    EXPECT_FALSE(has_secret(url)) << url;
  }
}

TEST(Url, MessagesShowNoSecrets) {
  EXPECT_EQ(abridged("'https://u:SECRET@x.y/a?b=1': no such file"),
            "'https://...@x.y/a?b=1': no such file");
  EXPECT_EQ(abridged("'https://x.y/a.jpg?b=1&token=SECRET': no such file; try https://x.y/?c=1"),
            "'https://x.y/a.jpg?...': no such file; try https://x.y/?c=1");
  EXPECT_EQ(abridged("who@x.y wrote a?token=1"), "who@x.y wrote a?token=1");
}

}  // namespace
}  // namespace moesaic
