// SPDX-License-Identifier: Apache-2.0
#include "moesaic/report/results.h"

#include <gtest/gtest.h>

#include <limits>

#include "moesaic/base/error.h"

namespace moesaic {
namespace {

Results two_rows() {
  Results results{.experiment = "demo", .scale = "paper", .seconds = 12.5};
  results.rows.push_back({.name = "pretrain", .metric = "test_accuracy", .measured = 88.25});
  results.rows.push_back({.name = "keep4/random",
                          .metric = "bytes",
                          .measured = 1234567.0,
                          .std = 0.5,
                          .runs = 3,
                          .paper = 87.0,
                          .paper_std = 0.25});
  return results;
}

TEST(Results, JsonHasEveryKeyInOrderAndNullForWhatIsAbsent) {
  EXPECT_EQ(
      to_json(two_rows()).dump(),
      R"({"experiment":"demo","scale":"paper","rows":[)"
      R"({"name":"pretrain","metric":"test_accuracy","measured":88.25,"std":null,"runs":1,"min":null,)"
      R"("median":null,"max":null,)"
      R"("paper":null,"paper_std":null,"verdict":null},)"
      R"({"name":"keep4/random","metric":"bytes","measured":1234567,"std":0.5,"runs":3,"min":null,)"
      R"("median":null,"max":null,)"
      R"("paper":87,"paper_std":0.25,"verdict":"outside"}],"seconds":12.5})");
}

TEST(Results, ANumberThatIsNoneIsRefusedByName) {
  Results results = two_rows();
  results.rows[0].measured = std::numeric_limits<double>::quiet_NaN();
  try {
    to_json(results);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::failure);
    EXPECT_STREQ(error.what(), "demo: test_accuracy of 'pretrain' is nan");
  }
}

TEST(Results, FindsARowByNameAndMetric) {
  const Results results = two_rows();
  ASSERT_NE(results.find("keep4/random", "bytes"), nullptr);
  EXPECT_EQ(results.find("keep4/random", "bytes")->measured, 1234567.0);
  EXPECT_EQ(results.find("keep4/random", "test_accuracy"), nullptr);
  EXPECT_EQ(results.find("keep4", "bytes"), nullptr);
}

TEST(Results, TheTablePutsThePapersValueBesideTheMeasuredOne) {
  EXPECT_EQ(
      results_table(two_rows()).markdown(),
      "| row          | metric        | n |      mean |  std | paper | paper std | verdict |\n"
      "|--------------|---------------|--:|----------:|-----:|------:|----------:|--------:|\n"
      "| pretrain     | test_accuracy | 1 |     88.25 |    - |     - |         - |       - |\n"
      "| keep4/random | bytes         | 3 | 1,234,567 | 0.50 | 87.00 |      0.25 | outside |\n");
}

TEST(Results, AVerdictNeedsThePapersSpread) {
  ResultRow row{.name = "a", .metric = "entropy", .measured = 0.25};
  EXPECT_EQ(row.verdict(), "");
  row.paper = 0.5;
  EXPECT_EQ(row.verdict(), "");
  row.paper_std = 0.25;
  EXPECT_EQ(row.verdict(), "inside") << "its ends included";
  row.measured = 0.75;
  EXPECT_EQ(row.verdict(), "inside");
  row.measured = 0.7501;
  EXPECT_EQ(row.verdict(), "outside");
}

TEST(Results, DigitsAreTheRows) {
  Results results = two_rows();
  results.rows[0].digits = 0;
  results.rows[1].digits = 3;
  const std::string text = results_table(results).text();
  EXPECT_NE(text.find("  88  "), std::string::npos) << text;
  EXPECT_NE(text.find("87.000"), std::string::npos) << text;
}

}  // namespace
}  // namespace moesaic
