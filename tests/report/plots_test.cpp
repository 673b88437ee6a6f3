// SPDX-License-Identifier: Apache-2.0

#include "base/support.h"
#include "moesaic/base/file.h"
#include "moesaic/base/process.h"
#include "moesaic/report/runs.h"
#include "report/panels.h"
#include "report/runs_fixture.h"
#include "support/matchers.h"

namespace moesaic {
namespace {

const char* const kRows = R"("rows": [{"name": "it's_a mixture"}, {"name": "single"}])";
const char* const kPaper = R"(, "paper": {"single": {"test_accuracy": 80}})";

Figure figure(const PlotConfig& plot, const std::string& rest = kRows,
              const std::vector<MeasuredRow>& rows = report_test::measured_rows()) {
  RunsConfig config = report_test::runs_config(rest);
  config.plots = {{"points", {"test_accuracy"}}, plot};
  Results results;
  results.rows = runs_results(config, rows);
  return runs_figures(config, rows, results).back();
}

/// Draws it; nothing is said.
void draw(const Figure& figure) {
  const test::TempDir folder;
  EXPECT_EQ(test::said_by([&] { draw_figure(folder.path(), figure, "figure-2"); }), "")
      << figure.script;
  EXPECT_THAT(read_text(folder / "figure-2.png"), StartsWith("\x89PNG"));
  EXPECT_THAT(read_text(folder / "figure-2.svg"), HasSubstr("</svg>"));
  EXPECT_TRUE(std::filesystem::exists(folder / "figure-2.tsv"));
}

TEST(PointsPlot, ShowsMeansBesideThePapers) {
  const Figure drawn = figure({"points", {"test_accuracy"}}, std::string(kRows) + kPaper);
  EXPECT_EQ(drawn.data,
            "# place\tmean\tstd\tpaper\tpaper std\n0\t92.0000\t2.8284\t-\t-\n"
            "1\t75.5000\t0.0000\t80.0000\t0.0000\n");
  EXPECT_THAT(drawn.script, HasSubstr("'it''s a mixture' 0, 'single' 1"));
  EXPECT_THAT(drawn.script, HasSubstr("the paper''s"));
  EXPECT_THAT(figure({"points", {"test_accuracy"}}).script, Not(HasSubstr("the paper''s")));
}

TEST(CurvesPlot, ShowsMeansInBandsOrEveryEntryOfATable) {
  EXPECT_EQ(figure({"curves", {"entropy"}}).data,
            "# steps\tmean\tstd\n0\t0.92000\t0.02828\n7\t0.22000\t0.02828\n");
  EXPECT_THAT(figure({"curves", {"entropy"}}).script, HasSubstr("filledcurves"));
  EXPECT_EQ(figure({"curves", {"expert_signal"}}).data,
            "# steps\tentries row by row\n0\t1.00000\t2.00000\t3.00000\t0.12500\n"
            "7\t1.00000\t2.00000\t3.00000\t0.12500\n");
}

TEST(CurvesPlot, OfTheLastPhaseBeginsWithIt) {
  std::vector<MeasuredRow> rows = report_test::measured_rows();
  rows[0].steps_before_last_phase = 7;
  const PlotConfig plot{.kind = "curves", .metrics = {"entropy"}, .last_phase = true};
  EXPECT_EQ(figure(plot, kRows, rows).data, "# steps\tmean\tstd\n0\t0.22000\t0.02828\n");
}

TEST(CurvesPlot, OnALogarithmicAxisLeavesZerosOut) {
  std::vector<MeasuredRow> rows = report_test::measured_rows();
  for (RunRecord& run : rows[0].runs) {
    run.snapshots[0].numbers["entropy"] = 0.0;
    run.snapshots[1].numbers["entropy"] = 2.5e-7;
  }
  PlotConfig plot{.kind = "curves", .metrics = {"entropy"}, .log_y = true};
  const Figure drawn = figure(plot, kRows, rows);
  EXPECT_EQ(drawn.data, "# steps\tmean\tstd\n7\t2.5e-07\t0\n");
  EXPECT_THAT(drawn.script, HasSubstr("set logscale y"));
  draw(drawn);
  EXPECT_EQ(config_problem(plot).text, "");
  plot.kind = "points";
  EXPECT_THAT(config_problem(plot).text, HasSubstr("log_y is for plots of kind 'curves'"));
}

TEST(Plots, HaveTheRowsThatTheyName) {
  const PlotConfig plot{"points", {"test_accuracy"}, {"single"}};
  EXPECT_EQ(figure(plot).data, "# place\tmean\tstd\tpaper\tpaper std\n0\t75.5000\t0.0000\t-\t-\n");
}

/// Rows of two curves at two sizes.
std::vector<MeasuredRow> sized_rows() {
  std::vector<MeasuredRow> rows;
  for (const char* name : {"a/n1", "a/n20", "b, n1", "b, n20"}) {
    MeasuredRow& row = rows.emplace_back(report_test::measured_rows()[1]);
    row.name = name;
    row.runs[0].final.numbers["test_accuracy"] = static_cast<double>(rows.size());
  }
  return rows;
}

constexpr const char* kSized = R"("rows": [{"name": "a/n1"}, {"name": "a/n20"},
                                          {"name": "b, n1"}, {"name": "b, n20"}])";

TEST(LinesPlot, HasALineForEachCurve) {
  const PlotConfig plot{"lines", {"test_accuracy"}, {}, {"a/n", "b, n"}, {1, 20}, "samples"};
  const Figure drawn = figure(plot, kSized, sized_rows());
  EXPECT_EQ(drawn.data,
            "# x\tmean\tstd\n1\t1.0000\t0.0000\n20\t2.0000\t0.0000\n\n\n"
            "# x\tmean\tstd\n1\t3.0000\t0.0000\n20\t4.0000\t0.0000\n");
  EXPECT_THAT(drawn.script, HasSubstr("title 'a'"));
  EXPECT_THAT(drawn.script, HasSubstr("title 'b'"));
  EXPECT_THAT(drawn.script, HasSubstr("set xlabel 'samples'"));
  draw(drawn);
}

/// As where no accuracy has left that of guessing.
TEST(LinesPlot, OfNothingIsAnEmptyPanel) {
  const PlotConfig plot{"lines", {"test_accuracy"}, {}, {"c/n"}, {1, 20}, "samples"};
  const Figure drawn = figure(plot, kSized, sized_rows());
  EXPECT_EQ(drawn.data, "# x\tmean\tstd\n");
  draw(drawn);
}

TEST(MapPlot, HasCurvesAsRowsAndSizesAsColumns) {
  const PlotConfig plot{"map", {"test_accuracy"}, {}, {"a/n", "b, n"}, {1, 20}, "samples"};
  const Figure drawn = figure(plot, kSized, sized_rows());
  EXPECT_EQ(drawn.data, "# column\trow\tvalue\n0\t0\t1.00\n1\t0\t2.00\n0\t1\t3.00\n1\t1\t4.00\n");
  EXPECT_THAT(drawn.script, HasSubstr("('a' 0, 'b' 1)"));
  draw(drawn);
}

TEST(NamedTics, ShowAPercentSignAsItIs) {
  EXPECT_EQ(named_tics({"50 %", "a_b"}), "('50 %%' 0, 'a b' 1)");
  EXPECT_EQ(named_tics({"a", "b", "c"}, 2), "('a' 0, 'c' 2)");
}

TEST(HeatmapPlot, ShowsTheTableAtTheEnd) {
  EXPECT_EQ(figure({"heatmap", {"dispatch"}}).data,
            "# column\trow\tvalue\n0\t0\t1\n1\t0\t2\n0\t1\t3\n1\t1\t14\n");
}

TEST(StemsPlot, HasAPanelForLinesNamedAlikeUpToAComma) {
  std::vector<MeasuredRow> rows = report_test::measured_rows();
  rows[0].runs[0].final.tables["dispatch"] = {
      {"expert 2, neuron 1", "expert 2, neuron 2", "expert 1, neuron 1"},
      {"p1", "p2"},
      {{1, -2}, {0.5, 3}, {4, 5}}};
  const Figure drawn = figure({"stems", {"dispatch"}}, kRows, rows);
  EXPECT_EQ(drawn.data,
            "# column\tvalue\n0\t1\n1\t-2\n0\t0.5\n1\t3\n\n\n# column\tvalue\n0\t4\n1\t5\n");
  EXPECT_THAT(drawn.script, HasSubstr("set title 'expert 2, training examples; it''s a mixture"));
  EXPECT_THAT(drawn.script, HasSubstr("with impulses"));
  if (!find_program("gnuplot").empty()) draw(drawn);
}

TEST(HeatmapPlot, HasAScaleWithWhiteAtZero) {
  std::vector<MeasuredRow> rows = report_test::measured_rows();
  const auto script = [&] { return figure({"heatmap", {"dispatch"}}, kRows, rows).script; };
  EXPECT_THAT(script(), HasSubstr("set palette defined (0 '#FFFFFF', "));
  EXPECT_THAT(script(), HasSubstr("set cbrange [0:14]"));
  rows[0].runs[0].final.tables["dispatch"].values[0][0] = -20;
  EXPECT_THAT(script(), HasSubstr("set palette defined (-1 '#D55E00', 0 '#FFFFFF', "));
  EXPECT_THAT(script(), HasSubstr("set cbrange [-20:20]"));
}

TEST(MapPlot, ShowsNothingWhereNoRunHasAValue) {
  const PlotConfig plot{"map", {"test_accuracy"}, {}, {"a/n", "b, n"}, {1, 20}, "samples"};
  std::vector<MeasuredRow> rows = sized_rows();
  rows[1].runs[0].final.numbers.clear();
  const Figure drawn = figure(plot, kSized, rows);
  EXPECT_EQ(drawn.data, "# column\trow\tvalue\n0\t0\t1.00\n0\t1\t3.00\n1\t1\t4.00\n");
  if (!find_program("gnuplot").empty()) draw(drawn);
}

TEST(PointsPlot, KeepsErrorBarsInTheRangeOfTheMetric) {
  std::vector<MeasuredRow> rows = report_test::measured_rows();
  rows[0].metrics[0].min = 0.0;
  rows[0].metrics[0].max = 93.0;
  const std::string script = figure({"points", {"test_accuracy"}}, kRows, rows).script;
  EXPECT_THAT(script, HasSubstr("within(y) = y < 0 ? 0 : y > 93 ? 93 : y\n"));
  EXPECT_THAT(script, HasSubstr("set xrange [74.625:93.875]"));
}

TEST(PointsPlot, LeavesOutWhenAnAccuracyConvergedThatIsThatOfGuessing) {
  std::vector<MeasuredRow> rows = report_test::measured_rows();
  for (MeasuredRow& row : rows) {
    row.metrics.push_back({"converged_test_accuracy", "epochs until test accuracy converges", 1});
    row.metrics[0].chance_level = 80.0;
    for (RunRecord& run : row.runs) run.final.numbers["converged_test_accuracy"] = 3.0;
  }
  EXPECT_EQ(figure({"points", {"converged_test_accuracy"}}, kRows, rows).data,
            "# place\tmean\tstd\tpaper\tpaper std\n0\t3.0000\t0.0000\t-\t-\n");
}

TEST(HeatmapPlot, NamesSomeOfManyColumnsUnderATitleThatFits) {
  std::vector<MeasuredRow> rows = report_test::measured_rows();
  MeasuredTable& table = rows[0].runs[0].final.tables["dispatch"];
  rows[0].name = "a name of a row that is far longer than its panel is wide";
  EXPECT_THAT(
      figure({"heatmap", {"dispatch"}}, kRows, rows).script,
      HasSubstr("set title 'a name of a row that is far longer than its'.\"\\n\".'panel is wide"));
  table = {{"r"}, {}, {{}}};
  for (int i = 1; i <= 100; ++i) {
    table.columns.push_back("p" + std::to_string(i));
    table.values[0].push_back(i);
  }
  const Figure wide = figure({"heatmap", {"dispatch"}}, kRows, rows);
  EXPECT_THAT(wide.script, HasSubstr("set xtics ('p1' 0, 'p6' 5, 'p11' 10,"));
  EXPECT_THAT(wide.script, HasSubstr("? svg(1267, ")) << "scale and its numbers need 137 pixels";
  EXPECT_THAT(wide.script,
              HasSubstr("set title 'a name of a row that is far longer than its panel is wide"));
  draw(wide);
}

TEST(PointsPlot, HasItsPanelsBelowEachOther) {
  EXPECT_THAT(figure({"points", {"test_accuracy", "entropy"}}).script,
              HasSubstr("set multiplot layout 2,1 "));
}

TEST(ScatterPlot, HasAPointForEachRunThatHasBoth) {
  EXPECT_EQ(figure({"scatter", {"entropy", "test_accuracy"}}).data,
            "# entropy\ttest_accuracy\n0.25000\t90.00000\n0.25000\t94.00000\n");
}

/// Row 'single' has no entropy. All runs have ended by then, so nothing may be refused.
TEST(Plots, OfRowsWithoutTheMetricAreEmpty) {
  for (const PlotConfig& plot : {PlotConfig{"points", {"entropy"}, {"single"}},
                                 PlotConfig{"curves", {"entropy"}, {"single"}},
                                 PlotConfig{"scatter", {"entropy", "test_accuracy"}, {"single"}}}) {
    const Figure drawn = figure(plot);
    EXPECT_THAT(drawn.script, HasSubstr("no run has a value")) << plot.kind;
    draw(drawn);
  }
}

TEST(PlotName, IsWithoutMarkup) {
  EXPECT_EQ(plot_name("it's B&W, x^2_i"), "'it''s B\\&W, x\\^2 i'");
}

const char* const kFit = R"(, "fits": [{"name": "growth", "metric": "test_accuracy",
    "x": {"it's_a mixture": 10, "single": 20}}], "paper": {"growth": {"test_accuracy_exponent": 2}})";

TEST(PowerPlot, ShowsAFitBesideThePapersExponent) {
  const Figure drawn = figure({"power", {"test_accuracy"}}, std::string(kRows) + kFit);
  EXPECT_EQ(drawn.data, "# x\tmean\tstd\n10\t92\t2.82843\n20\t75.5\t0\n");
  // That of the first runs, which both rows have: ln(75.5 / 90) / ln 2.
  EXPECT_THAT(drawn.script, HasSubstr("fitted exponent -0.25"));
  EXPECT_THAT(drawn.script, HasSubstr("the paper''s exponent 2.00"));
  if (!find_program("gnuplot").empty()) draw(drawn);
}

TEST(PaddedRange, LeavesRoomEvenAroundEqualValues) {
  EXPECT_EQ(padded_range({1, 3, 2}), "[0.9:3.1]");
  EXPECT_EQ(padded_range({0, 0}), "[-0.001:0.001]");
  EXPECT_EQ(padded_range({-20}), "[-21.001:-18.999]");
  EXPECT_EQ(padded_range({}), "[0:1]");  // gnuplot cannot choose a range for an empty panel.
}

TEST(Plots, AreDrawnWithoutAWord) {
  if (find_program("gnuplot").empty()) GTEST_SKIP() << "needs gnuplot";
  const std::vector<PlotConfig> plots = {{"points", {"test_accuracy"}},
                                         {"points", {"test_accuracy", "entropy"}},
                                         {"curves", {"entropy"}},
                                         {"curves", {"entropy", "expert_signal", "dispatch"}},
                                         {"heatmap", {"dispatch"}},
                                         {"heatmap", {"dispatch", "expert_signal"}},
                                         {"scatter", {"entropy", "test_accuracy"}}};
  for (const PlotConfig& plot : plots) draw(figure(plot, std::string(kRows) + kPaper));
}

TEST(Plots, OfWhatNoRunHasSayIt) {
  std::vector<MeasuredRow> rows = report_test::measured_rows();
  for (MeasuredRow& row : rows) {
    for (RunRecord& run : row.runs) {
      run.final.numbers.erase("entropy");
      run.final.tables.erase("dispatch");
      run.snapshots.clear();
    }
  }
  for (const PlotConfig& plot : std::vector<PlotConfig>{{"points", {"entropy", "test_accuracy"}},
                                                        {"heatmap", {"dispatch"}}}) {
    const Figure drawn = figure(plot, kRows, rows);
    EXPECT_THAT(drawn.script, HasSubstr("no run has a value"));
    if (!find_program("gnuplot").empty()) draw(drawn);
  }
}

TEST(Plots, OfOneNumberAreDrawnToo) {
  if (find_program("gnuplot").empty()) GTEST_SKIP() << "needs gnuplot";
  RunRecord run;
  run.final = {0, {{"test_accuracy", 0.0}}, {{"load", {{"load"}, {"expert 1"}, {{1}}}}}};
  run.snapshots = {run.final};
  const std::vector<MeasuredRow> rows = {
      {"single",
       {{"test_accuracy", "test accuracy, %"}, {"load", "fraction of the rows", 3, true}},
       {run}}};
  for (const PlotConfig& plot :
       std::vector<PlotConfig>{{"points", {"test_accuracy"}},
                               {"curves", {"test_accuracy", "load"}},
                               {"heatmap", {"load"}},
                               {"scatter", {"test_accuracy", "test_accuracy"}}}) {
    draw(figure(plot, R"("rows": [{"name": "single"}])", rows));
  }
}

}  // namespace
}  // namespace moesaic
