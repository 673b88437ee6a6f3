// SPDX-License-Identifier: Apache-2.0
#include "moesaic/report/comparison.h"

#include <cmath>

#include "base/support.h"
#include "support/matchers.h"

namespace moesaic {
namespace {

TEST(Comparison, SubtractsRunsOfTheSameSeed) {
  const ResultRow random = row_of_runs("random", "accuracy", {{1, 90}, {2, 91}, {3, 95}, {9, 0}});
  const ResultRow norm = row_of_runs("norm", "accuracy", {{3, 97}, {1, 91}, {2, 94}, {4, 100}});
  const auto found = compared(norm, random);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->row + " " + found->against + " " + found->metric, "norm random accuracy");
  // Differences 1, 3 and 2: a sample of mean 2 and standard deviation 1.
  EXPECT_EQ(found->difference.n, 3);
  EXPECT_EQ(found->difference.mean, 2.0);
  EXPECT_EQ(found->difference.std, 1.0);
  EXPECT_NEAR(found->difference.standard_error().value(), 0.5773502691896258, 1e-15);
  EXPECT_EQ(comparison_table({*found}).text(),
            "row   against  metric    n  difference  std. error     95 % interval\n"
            "norm  random   accuracy  3           2      0.5774  -0.4841 to 4.484\n");
  const Json json = to_json(std::vector{*found})[0];
  EXPECT_NEAR(json["low"].get<double>(), 2.0 - 4.302652729749464 / std::sqrt(3.0), 1e-12);
  EXPECT_NEAR(json["high"].get<double>(), 2.0 + 4.302652729749464 / std::sqrt(3.0), 1e-12);
}

TEST(Comparison, OfOnePairHasNoInterval) {
  const auto found =
      compared(row_of_runs("b", "loss", {{1, 0.5}, {2, 7}}), row_of_runs("a", "loss", {{1, 0.25}}));
  ASSERT_TRUE(found);
  EXPECT_THAT(comparison_table({*found}).text(), HasSubstr("1        0.25           -"));
  EXPECT_EQ(to_json(std::vector{*found}).dump(),
            R"([{"row":"b","against":"a","metric":"loss","n":1,"difference":0.25,"std":null,)"
            R"("standard_error":null,"low":null,"high":null}])");
  EXPECT_FALSE(compared(row_of_runs("b", "loss", {{2, 1}}), row_of_runs("a", "loss", {{1, 1}})));
}

TEST(Comparison, OfAReportIsWithTheFirstRowOfEachMetric) {
  const SeedValues two = {{1, 1}, {2, 4}}, others = {{1, 1}, {2, 6}};
  const std::vector<RowComparison> found =
      compared_with_first({row_of_runs("a", "steps", two), row_of_runs("b", "loss", two),
                           row_of_runs("b", "steps", others), row_of_runs("c", "loss", {{1, 1}}),
                           row_of_runs("d", "loss", others), row_of_runs("e", "loss", two),
                           ResultRow{.name = "ratio", .metric = "loss"}});
  ASSERT_EQ(found.size(), 2U) << "of one seed, or equal for all of them, is none to report";
  EXPECT_EQ(found[0].row + found[0].against + found[0].metric, "basteps");
  EXPECT_EQ(found[1].row + found[1].against + found[1].metric, "dbloss");
  EXPECT_THAT(comparison_markdown(found), HasSubstr("\n| row | against | metric | n |"));
  EXPECT_EQ(comparison_markdown({}), "");
}

class CompareResults : public ::testing::Test {
 protected:
  CompareResults() {
    put("a.json",
        {row_of_runs("x, y", "accuracy", {{1, 1}, {2, 2}}),
         row_of_runs("x, y", "loss", {{1, 5}, {2, 5}}),
         row_of_runs("z", "accuracy", {{1, 2}, {2, 4}}), row_of_runs("z", "loss", {{1, 4}, {2, 4}}),
         row_of_runs("late", "accuracy", {{3, 1}})});
    put("b.json", {row_of_runs("z", "accuracy", {{2, 5}, {3, 0}}),
                   row_of_runs("late", "accuracy", {{4, 1}, {6, 1}})});
  }
  void put(const std::string& name, std::vector<ResultRow> rows) const {
    test::put(folder_ / name, to_json(Results{.rows = std::move(rows)}).dump());
  }
  std::vector<RowComparison> compare(const std::vector<std::string>& files,
                                     const std::vector<std::string>& rows,
                                     const std::string& metric = "") const {
    CompareOptions options{.rows = rows, .metric = metric};
    for (const std::string& file : files) options.files.push_back((folder_ / file).string());
    return compare_results(options);
  }
  test::TempDir folder_;
};

TEST_F(CompareResults, ComparesRowsOfAFileWithTheFirst) {
  const auto found = compare({"a.json"}, {"z", "x, y"});
  ASSERT_EQ(found.size(), 2U);
  EXPECT_EQ(found[0].row + found[0].against, "x, yz");
  EXPECT_EQ(found[0].difference.mean, -1.5);
  EXPECT_EQ(found[1].metric, "loss");
  const auto one = compare({"a.json"}, {"x, y", "z"}, "loss");
  ASSERT_EQ(one.size(), 1U);
  EXPECT_EQ(one[0].difference.mean, -1.0);
}

TEST_F(CompareResults, ComparesTheSameRowsOfTwoFiles) {
  const auto found = compare({"a.json", "b.json"}, {"z"});
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].against, (folder_ / "a.json").string());
  EXPECT_EQ(found[0].difference.mean, 1.0) << "seed 2, the second file minus the first";
  EXPECT_EQ(found[0].difference.n, 1);
}

TEST_F(CompareResults, SaysWhatIsWrong) {
  const auto refusal = [&](const std::vector<std::string>& files,
                           const std::vector<std::string>& rows, const std::string& metric = "") {
    return test::usage_of([&] { compare(files, rows, metric); });
  };
  EXPECT_THAT(refusal({"a.json"}, {"z,lat"}),
              HasSubstr("a.json: unknown row 'lat'; did you mean 'late'?"));
  EXPECT_THAT(refusal({"a.json"}, {"x, yy", "z"}),
              HasSubstr("a.json: unknown row 'x, yy'; did you mean 'x, y'?"));
  EXPECT_THAT(refusal({"a.json", "b.json"}, {"x, y"}), HasSubstr("b.json: unknown row 'x, y'"));
  EXPECT_THAT(refusal({"a.json"}, {"z", "x, y"}, "los"),
              HasSubstr("row 'z' has no metric 'los'; did you mean 'loss'?"));
  EXPECT_THAT(refusal({"a.json"}, {"z"}), HasSubstr("one file needs two rows"));
  EXPECT_THAT(refusal({"a.json"}, {"z", "late"}),
              HasSubstr("'late' and 'z' have no seeds in common: 3 to 3 and 1 to 2"));
  EXPECT_THAT(refusal({"a.json", "b.json"}, {"late"}),
              HasSubstr("a.json have no seeds in common: 4 to 6 and 3 to 3"));
  EXPECT_THAT(refusal({"none.json"}, {"z"}), HasSubstr("none.json: no such file"));
  test::put(folder_ / "recipe.json", R"({"name": "a", "phases": []})");
  EXPECT_THAT(refusal({"recipe.json"}, {"z", "late"}),
              HasSubstr("recipe.json: a recipe, not results; compare reads results.json of "));
  test::put(folder_ / "table.json", R"({"name": "a", "kind": "runs", "rows": []})");
  test::put(folder_ / "metrics.jsonl", "{}\n{}\n");
  EXPECT_THAT(refusal({"metrics.jsonl"}, {"z", "late"}),
              HasSubstr("the log of a run, not results"));
  const std::string table = (folder_ / "table.json").string();
  EXPECT_THAT(
      refusal({"table.json"}, {"z", "late"}),
      HasSubstr("an experiment, not its results; make them by: moesaic reproduce " + table));
}

TEST_F(CompareResults, DamagedFilesAreFailures) {
  const auto failure = [&](const std::string& text) {
    test::put(folder_ / "c.json", text);
    return test::failure_of([&] { compare({"c.json"}, {"z", "y"}); });
  };
  EXPECT_THAT(failure("{\"rows\": ["), HasSubstr("c.json"));
  EXPECT_THAT(failure("{}"), HasSubstr("missing key 'rows'"));
  EXPECT_THAT(failure(R"({"rows": [{"name": "z", "metric": "m", "values": {"one": 1}}]})"),
              HasSubstr("a seed must be a whole number, found 'one'"));
  EXPECT_THAT(failure(R"({"rows": [{"name": "z", "metric": "m", "values": {"1": "x"}}]})"),
              HasSubstr("'value of a run' must be a number"));
  test::put(folder_ / "old.json", R"({"experiment": "a", "scale": "paper",
                                     "rows": [{"name": "z", "metric": "m", "measured": 1,
                                               "std": null, "runs": 1}]})");
  EXPECT_THAT(test::usage_of([&] {
                compare({"old.json"}, {"z", "y"});
              }),
              HasSubstr("old.json: the file has no values of single runs"));
}

}  // namespace
}  // namespace moesaic
