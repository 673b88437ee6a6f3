// SPDX-License-Identifier: Apache-2.0
#include "moesaic/report/runs.h"

#include "report/runs_fixture.h"
#include "support/matchers.h"

namespace moesaic {
namespace {

class RunsReport : public ::testing::Test {
 protected:
  Report report() const { return runs_report(experiment_, config_, rows_, results(), "out"); }
  std::string markdown() const { return report().markdown; }
  Results results() const {
    return {.experiment = "small",
            .scale = "paper",
            .rows = runs_results(config_, rows_),
            .seconds = 3};
  }
  RunsConfig config_ = report_test::runs_config(R"(
      "rows": [{"name": "it's_a mixture"}, {"name": "single"}],
      "plots": [{"kind": "points", "metrics": ["test_accuracy"]},
                {"kind": "heatmap", "metrics": ["dispatch"]}],
      "paper": {"it's_a mixture": {"test_accuracy": [91, 1.5],
                "dispatch": {"initial": [5, 5], "rows": [[4, 2], [1, 3]]}}})");
  std::vector<MeasuredRow> rows_ = report_test::measured_rows();
  Experiment experiment_{.name = "small", .kind = "runs", .description = "A test."};
};

TEST_F(RunsReport, HasNumbersWithAVerdictAndFigures) {
  EXPECT_THAT(
      markdown(),
      AllOf(HasSubstr("![test accuracy, %](figure.svg)"),
            HasSubstr("![training examples](figure-2.svg)"),
            HasSubstr(
                "| row            | metric        | n |  mean |   std | median |   min |   max | "
                "paper | paper std | verdict |\n"),
            HasSubstr(
                "| it's_a mixture | test_accuracy | 2 | 92.00 |  2.83 |  92.00 | 90.00 | 94.00 | "
                "91.00 |      1.50 |  inside |\n"),
            HasSubstr("| it's_a mixture | entropy       | 2 | 0.250 |")));
}

TEST_F(RunsReport, ComparesRowsInPairsOfRuns) {
  EXPECT_THAT(markdown(), AllOf(HasSubstr("divided by n - 1"), Not(HasSubstr("in pairs"))));
  rows_[1].runs.push_back(rows_[1].runs[0]);
  rows_[1].runs[1].final.numbers["test_accuracy"] = 77.5;
  // 75.5 - 90 and 77.5 - 94: mean -15.5, standard error 1, t of one degree of freedom 12.706.
  EXPECT_THAT(markdown(), HasSubstr("| single | it's_a mixture | test_accuracy | 2 |      -15.5 |  "
                                    "        1 | -28.21 to -2.794 |\n"));
  rows_[1].first_seed = 3;
  EXPECT_THAT(markdown(), Not(HasSubstr("in pairs"))) << "no seed in common";
}

TEST_F(RunsReport, HasTablesBesideThePapers) {
  EXPECT_THAT(markdown(),
              AllOf(HasSubstr("it's_a mixture (run 1 of 2), training examples after 7 steps:\n\n"),
                    HasSubstr("| all, before training |        4 |        6 |\n"
                              "| all, at the end      |        4 |       16 |\n"
                              "| cluster 1            |        1 |        2 |\n"),
                    HasSubstr("The paper's it's_a mixture, training examples:"),
                    HasSubstr("| all, at the end      |        5 |        5 |\n"),
                    HasSubstr("| expert and signal | expert 1 | expert 2 |\n")));
  experiment_.scale = Scale::quick;
  EXPECT_THAT(markdown(), Not(HasSubstr("The paper's it's_a mixture")));
}

TEST_F(RunsReport, SaysWhatMetricsAreAndHasNoEmptyColumns) {
  EXPECT_THAT(markdown(), AllOf(HasSubstr("The verdict says"),
                                HasSubstr("\n- `test_accuracy`: test accuracy, %\n"
                                          "- `entropy`: dispatch entropy, nats\n")));
  config_.paper = {};
  EXPECT_THAT(markdown(), AllOf(Not(HasSubstr("verdict")), Not(HasSubstr("| paper")),
                                HasSubstr("| median |   min |   max |\n")));
}

TEST_F(RunsReport, ShowsATableOfSeveralRowsOnce) {
  MeasuredRow same = rows_.front();
  same.name = "again";
  rows_.push_back(same);
  const std::string text = markdown(),
                    title = "it's_a mixture, again (run 1 of 2), expert and signal";
  EXPECT_THAT(text, HasSubstr("\n" + title + " after 7 steps:\n"));
  EXPECT_EQ(text.find("expert and signal after", text.find(title) + title.size() + 1),
            std::string::npos);
  rows_.back().runs.front().final.tables["expert_signal"].values[0][0] = 7;
  EXPECT_THAT(markdown(), HasSubstr("\nagain (run 1 of 2), expert and signal after 7 steps:\n"));
}

TEST_F(RunsReport, ASummaryNamesTheFiles) {
  EXPECT_THAT(report().summary,
              AllOf(HasSubstr("small, scale paper, 3 s\n\nrow  "), HasSubstr("cluster 1"),
                    HasSubstr("figure   out/figure.svg, figure.png\n"
                              "         out/figure-2.svg, figure-2.png\n"
                              "report   out/report.md\nresults  out/results.json\n")));
}

TEST_F(RunsReport, HasAFigureForEachPlot) {
  const std::vector<Figure> figures = runs_figures(config_, rows_, results());
  ASSERT_EQ(figures.size(), 2U);
  EXPECT_THAT(figures[0].script, HasSubstr("data = 'figure.tsv'"));
  EXPECT_THAT(figures[1].script, HasSubstr("data = 'figure-2.tsv'"));
}

}  // namespace
}  // namespace moesaic
