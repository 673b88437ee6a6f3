// SPDX-License-Identifier: Apache-2.0
#include "moesaic/formats/csv.h"

#include <utility>

#include "base/support.h"
#include "formats/pack.h"
#include "support/matchers.h"

namespace moesaic {
namespace {

using Rows = std::vector<std::vector<std::string>>;

class CsvTest : public ::testing::Test {
 protected:
  Rows rows(const std::string& bytes) {
    test::put(path_, bytes);
    csv::Reader reader(path_);
    Rows rows;
    while (reader.next()) {
      std::vector<std::string>& row = rows.emplace_back();
      for (size_t i = 0; i < reader.size(); ++i) row.emplace_back(reader.text(i));
    }
    EXPECT_FALSE(reader.next());
    return rows;
  }
  /// The message without the file's path, "line:column: what".
  std::string refused(const std::string& bytes) {
    return without_path(test::failure_of([&] { rows(bytes); }));
  }
  /// The same of a row of numbers whose last field is refused.
  std::string refused_number(const std::string& bytes) {
    return without_path(test::failure_of([&] {
      test::put(path_, bytes);
      csv::Reader reader(path_);
      while (reader.next()) reader.number(reader.size() - 1);
    }));
  }
  float number(const std::string& bytes) {
    test::put(path_, bytes);
    csv::Reader reader(path_);
    EXPECT_TRUE(reader.next());
    return reader.number(0);
  }

  test::TempDir folder_;
  std::filesystem::path path_ = folder_ / "rows.csv";

 private:
  std::string without_path(const std::string& message) const {
    EXPECT_TRUE(message.starts_with(path_.string() + ":")) << message;
    return message.substr(std::min(message.size(), path_.string().size() + 1));
  }
};

TEST_F(CsvTest, ReadsRowsWithEveryEndOfLine) {
  const Rows expected = {{"a", "b"}, {"1", "2"}, {"", "3"}};
  for (const std::string end : {"\n", "\r\n"}) {
    for (const std::string begin : {"", "\xEF\xBB\xBF"}) {
      for (const std::string& last : {std::string(), end, end + end}) {
        const std::string bytes = begin + "a,b" + end + "1,2" + end + ",3" + last;
        EXPECT_EQ(rows(bytes), expected);
        EXPECT_EQ(rows(test::gzip(bytes)), expected);
      }
    }
  }
  EXPECT_EQ(rows(""), Rows());
  EXPECT_EQ(rows("\xEF\xBB\xBF"), Rows());
  EXPECT_EQ(rows("\n"), (Rows{{""}}));
  EXPECT_EQ(rows("a,"), (Rows{{"a", ""}}));
}

TEST_F(CsvTest, ReadsWhatQuotesHold) {
  EXPECT_EQ(rows("\"a\",\"b,c\"\r\n\"\"\"d\"\"\",\"e\r\nf\"\n\"\",\"\"\"\""),
            (Rows{{"a", "b,c"}, {"\"d\"", "e\r\nf"}, {"", "\""}}));
}

TEST_F(CsvTest, ReadsMoreThanOnePiece) {
  std::string bytes;
  Rows expected;
  for (int i = 0; i < 20000; ++i) {
    expected.push_back({std::to_string(i), "\xC3\xA4 text"});
    bytes += std::to_string(i) + ",\xC3\xA4 text\r\n";
  }
  ASSERT_GT(bytes.size(), size_t{3} << 16);
  EXPECT_EQ(rows(bytes), expected);
}

TEST_F(CsvTest, RefusesRowsThatDoNotFitWithTheirPlace) {
  EXPECT_EQ(refused("1,2\n3\n"), "2:1: the row has 1 field, the first one has 2");
  EXPECT_EQ(refused("1,2\n\n3,4"), "2:1: the line is empty");
  EXPECT_EQ(refused("1,2\n3,4,5\n"), "2:5: the row has more than the 2 fields of the first one");
  EXPECT_EQ(refused("a\rb"), "1:2: a carriage return without a line feed");
  EXPECT_EQ(refused("a\r"), "1:2: a carriage return without a line feed");
}

TEST_F(CsvTest, RefusesUtf16) {
  for (const std::string& bytes :
       {std::string("\xFF\xFEx"), std::string("\xFE\xFFx"), std::string("a\0,\0", 4)}) {
    EXPECT_EQ(refused(bytes), " the file is UTF-16 or no text; save it as UTF-8");
  }
}

TEST_F(CsvTest, RefusesQuotesOutOfPlace) {
  EXPECT_EQ(refused("\xC3\xA4,b\"c\""), "1:4: a quote inside a field that begins without one");
  EXPECT_EQ(refused("1,2\n3,\"4\n5"), "2:3: the quote is not closed");
  EXPECT_EQ(refused("\"a\nb\"c"), "2:3: a field ends at its closing quote, found 'c' after it");
}

TEST_F(CsvTest, RefusesWhatIsAboveItsLimits) {
  const std::string longest(csv::kMaxFieldBytes, '1');
  EXPECT_EQ(rows("0," + longest).front().back(), longest);
  EXPECT_EQ(refused("0," + longest + "1"), "1:3: the field has more than 4096 bytes");
  EXPECT_EQ(refused("0,\"" + longest + "1\""), "1:3: the field has more than 4096 bytes");
  const std::string commas(csv::kMaxFields - 1, ',');
  EXPECT_EQ(rows(commas).front().size(), csv::kMaxFields);
  EXPECT_EQ(refused(commas + ","), "1:131073: the row has more than 131072 fields");
}

TEST_F(CsvTest, ReadsNumbersAndNothingElse) {
  const std::vector<std::pair<std::string, float>> numbers = {{"0", 0.0F},
                                                              {"-1.5", -1.5F},
                                                              {"1e3", 1000.0F},
                                                              {"\"2.5E-1\"", 0.25F},
                                                              {".5", 0.5F},
                                                              {"7.", 7.0F},
                                                              {"1e-60", 0.0F},
                                                              {"3.4028234e38", 3.4028234e38F},
                                                              {"16777216", 16777216.0F}};
  for (const auto& [text, expected] : numbers) EXPECT_EQ(number(text), expected) << text;
  for (const std::string text : {"nan", "inf", "-inf", "3.5e38", "1e400", "+1", " 1", "1 ", "1,5 ",
                                 "0x10", "1_000", "one", "1.2.3", "-"}) {
    EXPECT_THAT(refused_number("0," + text),
                HasSubstr(": expected a finite number in decimal notation, found '"))
        << text;
  }
  EXPECT_EQ(refused_number("1,2\n3,\n"),
            "2:3: expected a finite number in decimal notation, found an empty field");
  EXPECT_EQ(refused_number("1,\"a\nb\""),
            "1:3: expected a finite number in decimal notation, found 'a\\nb'");
}

TEST_F(CsvTest, RefusesCorruptGzip) {
  std::string packed = test::gzip("1,2\n3,4\n");
  packed.resize(packed.size() - 4);
  EXPECT_THAT(test::failure_of([&] { rows(packed); }), HasSubstr(path_.string()));
}

}  // namespace
}  // namespace moesaic
