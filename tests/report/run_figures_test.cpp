// SPDX-License-Identifier: Apache-2.0
// Figures of several runs, and of a run's experts; run_curve_test.cpp has those of one.
#include <gmock/gmock.h>

#include "base/support.h"
#include "moesaic/base/process.h"
#include "moesaic/report/figure.h"
#include "report/report_fixture.h"
#include "support/matchers.h"

namespace moesaic {
namespace {

using report_test::error_of;

constexpr const char* kFirst =
    R"({"kind": "train", "step": 4, "phase": "a", "loss": 3, "accuracy": 9}
{"kind": "eval", "step": 4, "phase": "a", "split": "test", "loss": 2, "accuracy": 20}
{"kind": "train", "step": 8, "phase": "b", "loss": 1, "accuracy": 50}
)";

TEST(RunComparison, HasAColourForEachRunAndTheMetricsThatAllHave) {
  const Figure figure = run_comparison(
      {{"one", kFirst}, {"it's", R"({"kind": "train", "step": 9, "phase": "c", "loss": 0.5})"}},
      "both");
  EXPECT_EQ(figure.data,
            "# one, training: steps\tloss\n4\t3\n\n8\t1\n\n\n"
            "# one, test: steps\tloss\n4\t2\n\n\n"
            "# it's, training: steps\tloss\n9\t0.5\n");
  EXPECT_THAT(figure.script, HasSubstr("data = 'both.tsv'"));
  EXPECT_THAT(figure.script,
              HasSubstr("lc rgb colour_of(1) dt dash_of(1) lw 1.5 title 'one, test'"));
  EXPECT_THAT(figure.script,
              HasSubstr("lc rgb colour_of(2) dt dash_of(2) lw 1.5 title 'it''s, training'"));
  EXPECT_THAT(figure.script, Not(HasSubstr("set arrow")));  // Their phases differ.
  EXPECT_THAT(figure.script, Not(HasSubstr("accuracy")));
}

TEST(RunComparison, RefusesRunsWithoutACommonMetric) {
  const std::string loss = R"({"kind": "train", "step": 9, "phase": "c", "loss": 0.5})";
  const std::string accuracy = R"({"kind": "eval", "step": 9, "phase": "c", "accuracy": 5})";
  EXPECT_THAT(error_of([&] {
                run_comparison({{"a", loss}, {"b", accuracy}}, "x");
              }),
              HasSubstr("the runs have neither loss nor accuracy in common"));
  EXPECT_THAT(error_of([&] {
                run_comparison({{"a", loss}, {"b", "{}\n"}}, "x");
              }),
              HasSubstr("b: its metrics.jsonl has neither loss nor accuracy"));
}

TEST(ReadMetrics, RefusesAFolderThatIsNoRun) {
  const test::TempDir folder;
  EXPECT_THAT(error_of([&] { read_metrics(folder.path()); }),
              HasSubstr(": no run, since it has no metrics.jsonl"));
}

std::string load_line(const std::string& kind, int64_t step, const std::string& routing) {
  return Json{{"kind", kind}, {"step", step}, {"routing", Json::parse(routing)}}.dump() + "\n";
}

TEST(ExpertFigure, HasAPanelForEachLayerAndNoLoadOfPrunedExperts) {
  const std::string metrics =
      load_line("train", 5, R"([{"layer": 1, "kept": [0, 1], "load": [0.75, 0.25]},
                                {"layer": 3, "kept": [0, 1], "load": [0.5, 0.5]}])") +
      load_line("eval", 6, R"([{"layer": 1, "kept": [0], "load": [1.0]}])") +
      load_line("train", 9, R"([{"layer": 1, "kept": [1], "load": [1.0]}])");
  const Figure figure = expert_figure(metrics, "load", "load");
  // Column, row and % of a uniform load.
  EXPECT_EQ(figure.data,
            "# column\trow\tvalue\n0\t0\t150.0\n0\t1\t50.0\n1\t1\t100.0\n\n\n"
            "# column\trow\tvalue\n0\t0\t100.0\n0\t1\t100.0\n");
  EXPECT_THAT(figure.script, HasSubstr("'block 1: load, % of a uniform one'"));
  EXPECT_THAT(figure.script, HasSubstr("set xtics ('5' 0, '9' 1)"));
}

TEST(ExpertFigure, AveragesNeighboursOfManySteps) {
  std::string metrics;
  for (int64_t step = 1; step <= 120; ++step) {
    metrics += load_line("train", step,
                         step % 2 == 0 ? R"([{"layer": 1, "kept": [4, 7], "load": [1.0, 0.0]}])"
                                       : R"([{"layer": 1, "kept": [4, 7], "load": [0.5, 0.5]}])");
  }
  const std::string data = expert_figure(metrics, "load", "load").data;
  EXPECT_THAT(data, HasSubstr("\n59\t0\t150.0\n"));
  EXPECT_THAT(data, HasSubstr("\n59\t1\t50.0\n"));
  EXPECT_THAT(data, Not(HasSubstr("\n60\t")));
}

TEST(ExpertFigure, TakesEvaluationsWhereStepsHaveNoLoad) {
  const std::string metrics =
      std::string(kFirst) +
      load_line("eval", 6, R"([{"layer": 0, "kept": [0, 1], "load": [0.5, 0.5]}])");
  EXPECT_THAT(expert_figure(metrics, "load", "load").data, HasSubstr("\n0\t1\t100.0\n"));
  EXPECT_THAT(error_of([&] { expert_figure(kFirst, "load", "load"); }),
              HasSubstr("no line has 'load' of experts; give a run of a mixture"));
  const std::string torn = load_line("eval", 6, R"([{"layer": 0, "kept": [0], "load": [1, 2]}])");
  EXPECT_THAT(error_of([&] { expert_figure(torn, "load", "load"); }),
              HasSubstr("'load' has another length than 'kept'"));
}

TEST(ExpertFigure, ShowsDroppedTokensAndRouterNorms) {
  const std::string metrics =
      load_line("train", 5, R"([{"layer": 1, "kept": [0, 1], "load": [0.5, 0.5]},
                                {"layer": 3, "kept": [0, 1], "load": [0.5, 0.5],
                                 "dropped": [0.25, 0.0]}])") +
      load_line("eval", 6, R"([{"layer": 1, "kept": [0, 1], "load": [0.5, 0.5],
                                "router_norm": [1.25, 0.5]}])");
  const Figure dropped = expert_figure(metrics, "dropped", "x");
  EXPECT_EQ(dropped.data, "# column\trow\tvalue\n0\t0\t25.0\n0\t1\t0.0\n");
  EXPECT_THAT(dropped.script, HasSubstr("'block 3: dropped tokens, %'"));
  const Figure norms = expert_figure(metrics, "router_norm", "x");
  EXPECT_EQ(norms.data, "# column\trow\tvalue\n0\t0\t1.250\n0\t1\t0.500\n");
  EXPECT_THAT(norms.script, HasSubstr("'block 1: norm of the router''s weights'"));
  const std::string loads = load_line("train", 5, R"([{"layer": 1, "kept": [0], "load": [1.0]}])");
  EXPECT_THAT(error_of([&] { expert_figure(loads, "dropped", "x"); }),
              HasSubstr("no line has 'dropped' of experts; give a run of a mixture with capac"));
}

TEST(ExpertFigure, IsDrawnWithoutAWord) {
  if (find_program("gnuplot").empty()) GTEST_SKIP() << "needs gnuplot";
  const test::TempDir folder;
  const std::string line =
      load_line("train", 5, R"([{"layer": 1, "kept": [0, 1], "load": [0.75, 0.25]}])");
  const auto draw = [&] {
    draw_figure_file(folder / "load.png", expert_figure(line, "load", "load"));
    draw_figure_file(folder / "runs.svg", run_comparison({{"a", kFirst}, {"b", kFirst}}, "runs"));
  };
  EXPECT_EQ(test::said_by(draw), "");
  EXPECT_THAT(read_text(folder / "load.png"), ::testing::StartsWith("\x89PNG"));
  EXPECT_THAT(read_text(folder / "runs.svg"), HasSubstr("b, test"));
}

}  // namespace
}  // namespace moesaic
