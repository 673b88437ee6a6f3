// SPDX-License-Identifier: Apache-2.0
#include "moesaic/report/results.h"

#include <cmath>
#include <limits>

#include "base/support.h"
#include "support/matchers.h"

namespace moesaic {
namespace {

Results two_rows() {
  Results results{.experiment = "demo", .scale = "paper", .seconds = 12.5};
  results.rows.push_back({.name = "pretrain", .metric = "test_accuracy", .measured = 88.25});
  results.rows.push_back({.name = "keep4/random",
                          .metric = "bytes",
                          .measured = 1234567.0,
                          .std = 0.5,
                          .num_runs = 3,
                          .values = {{9, 1234567.0}, {10, 0.5}},
                          .paper = {87.0, 0.25}});
  return results;
}

TEST(Results, JsonHasEveryKeyInOrderAndNullForWhatIsAbsent) {
  EXPECT_EQ(
      to_json(two_rows()).dump(),
      R"({"experiment":"demo","scale":"paper","rows":[)"
      R"({"name":"pretrain","metric":"test_accuracy","measured":88.25,"std":null,"runs":1,"min":null,)"
      R"("median":null,"max":null,"values":null,)"
      R"("paper":null,"paper_std":null,"paper_bound":null,"verdict":null},)"
      R"({"name":"keep4/random","metric":"bytes","measured":1234567,"std":0.5,"runs":3,"min":null,)"
      R"("median":null,"max":null,"values":{"9":1234567,"10":0.5},)"
      R"("paper":87,"paper_std":0.25,"paper_bound":null,"verdict":"outside"}],"seconds":12.5})");
}

TEST(Results, ANumberThatIsNoneIsRefusedByName) {
  Results results = two_rows();
  results.rows[0].measured = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(test::failure_of([&] { to_json(results); }),
            "demo: test_accuracy of 'pretrain' is nan");
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
  row.paper.value = 0.5;
  EXPECT_EQ(row.verdict(), "");
  row.paper.std = 0.25;
  EXPECT_EQ(row.verdict(), "inside") << "its ends included";
  row.measured = 0.75;
  EXPECT_EQ(row.verdict(), "inside");
  row.measured = 0.7501;
  EXPECT_EQ(row.verdict(), "outside");
}

TEST(Results, ABoundIsJudgedByTheIntervalOfTheMean) {
  // Three values have the interval 1 +- 4.303 / sqrt(3) * std.
  ResultRow row = row_of_runs("a", "lost", {{1, 0.9}, {2, 1.0}, {3, 1.1}});
  const auto verdict = [&](std::optional<double> at_most, std::optional<double> at_least) {
    row.paper.bound = PaperBound{at_most, at_least};
    return row.verdict();
  };
  EXPECT_EQ(verdict(1.3, {}), "met");
  EXPECT_EQ(verdict(1.2, {}), "open");
  EXPECT_EQ(verdict(0.8, {}), "open");
  EXPECT_EQ(verdict(0.7, {}), "not met");
  EXPECT_EQ(verdict({}, 0.7), "met");
  EXPECT_EQ(verdict({}, 1.3), "not met");
  EXPECT_EQ(verdict(1.2, 0.7), "open");
  const Results results{.experiment = "demo", .scale = "paper", .rows = {row}};
  EXPECT_EQ(to_json(results)["rows"][0]["paper_bound"].dump(), R"({"at_most":1.2,"at_least":0.7})");
  EXPECT_THAT(results_table(results).markdown(), HasSubstr("| >= 0.70, <= 1.20 |"));
  EXPECT_THAT(results_note(results), HasSubstr("A bound of the paper is met or not"));
  row = row_of_runs("a", "lost", {{1, 0.5}});
  EXPECT_EQ(verdict(1.0, {}), "open") << "one run has no interval";
}

TEST(Results, FilesAreReadWithTheirRunsAndOfFormerVersionsWithout) {
  const Results written{.rows = {row_of_runs("a", "loss", {{9, 1.0}, {10, 2.0}, {11, 6.0}})}};
  const auto read = measured_rows(Value::from_json(to_json(written), "results.json"));
  EXPECT_EQ(read.at(0).values, written.rows[0].values);
  EXPECT_EQ(read[0].std, written.rows[0].std);
  EXPECT_EQ(read[0].median, 2.0);
  const auto former = measured_rows(Value::from_json(
      Json::parse(
          R"({"rows": [{"name": "a", "metric": "update_seconds", "measured": 3, "std": 2, "runs": 5}]})"),
      "results.json"));
  EXPECT_EQ(former.at(0).measured, 3.0);
  EXPECT_EQ(former[0].metric, "step_seconds");
  EXPECT_DOUBLE_EQ(former[0].std.value(), std::sqrt(5.0)) << "2 sqrt(5 / 4)";
  EXPECT_TRUE(former[0].values.empty());
}

TEST(Results, DigitsAreTheRows) {
  Results results = two_rows();
  results.rows[0].digits = 0;
  results.rows[1].digits = 3;
  const std::string text = results_table(results).text();
  EXPECT_THAT(text, HasSubstr("  88  "));
  EXPECT_THAT(text, HasSubstr("87.000"));
}

}  // namespace
}  // namespace moesaic
