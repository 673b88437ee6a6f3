// SPDX-License-Identifier: Apache-2.0
#include "moesaic/report/figure.h"

#include "base/support.h"
#include "moesaic/base/file.h"
#include "moesaic/report/runs.h"
#include "report/report_fixture.h"
#include "support/matchers.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;
using report_test::error_of;
using report_test::TempDir;
using test::names_in;

Figure figure_of(const report_test::MadeSweep& made) {
  return sweep_report(report_test::experiment(), made.plan, made.results(), "out").figures.at(0);
}

TEST(SweepFigure, DataHasAColumnForEachNumber) {
  EXPECT_EQ(figure_of(report_test::made_sweep()).data,
            "# experts\trouter-norm-change: parameters pruned, %\trouter-norm-change: accuracy, %\t"
            "router-norm-change: std\trouter-norm-change: recovered, %\trouter-norm-change: std\t"
            "router-norm-change: FLOPs, %\trouter-norm-change: forward time, %\t"
            "random: parameters pruned, %\trandom: accuracy, %\trandom: std\t"
            "random: recovered, %\trandom: std\trandom: FLOPs, %\trandom: forward time, %\n"
            "8\t0.000\t96.5000\t0.0000\t96.7500\t0.0000\t100.000\t100.000"
            "\t0.000\t96.5000\t0.0000\t96.7500\t0.0000\t100.000\t100.000\n"
            "4\t40.000\t93.2500\t0.0000\t96.2500\t0.0000\t75.000\t80.000"
            "\t40.000\t71.0000\t0.0000\t95.0000\t0.0000\t60.000\t62.500\n");
}

TEST(SweepFigure, ErrorBarsAreTheSpreadOverTheRuns) {
  const Figure figure =
      figure_of(report_test::with_second_run(report_test::made_sweep(), 0.0, 2.0, 1.0));
  EXPECT_THAT(figure.data, HasSubstr("\n4\t40.000\t94.2500\t1.4142\t96.7500\t0.7071\t75.000\t"));
}

TEST(SweepFigure, ScriptKnowsTheSweep) {
  const std::string script = figure_of(report_test::made_sweep()).script;
  EXPECT_THAT(script, HasSubstr("criteria = 'router-norm-change random'\n"));
  EXPECT_THAT(script, HasSubstr("experts = 8\n"));
  EXPECT_THAT(script, HasSubstr("set xtics (\"0\\n8\" 0.000, \"40\\n4\" 40.000)\n"));
}

TEST(SweepFigure, DrawsThePlottedCriteriaAlone) {
  report_test::MadeSweep made = report_test::made_sweep();
  made.plan.plotted = {"random"};
  const Figure figure = figure_of(made);
  EXPECT_THAT(figure.script, HasSubstr("criteria = 'random'\n"));
  EXPECT_THAT(figure.data, HasSubstr("\n4\t40.000\t71.0000\t0.0000\t95.0000\t"));
  EXPECT_THAT(figure.data, Not(HasSubstr("router-norm-change")));
}

TEST(SweepFigure, ChoicesByLayerAreABlockOfTheirOwnWithLettersOnTheAxis) {
  report_test::MadeSweep made = report_test::made_with_choice();
  made.plan.sizes.push_back({"also4", 0, "also4 (4, 4)"});
  for (const std::string& criterion : made.plan.criteria) {
    made.add_network("also4/" + criterion, 94.5, 96.5, 900000, 16e6, 5000.0);
  }
  const Figure figure = figure_of(made);
  EXPECT_THAT(figure.data, HasSubstr("\n\n\nfirst_whole\t33.333\t94.5000\t"));
  EXPECT_THAT(figure.script,
              HasSubstr("set xtics (\"0\\n8\" 0.000, \"40\\n4, b\" 40.000, \"33\\na\" 33.333)\n"));
  EXPECT_THAT(figure.script, HasSubstr("'a: first whole (8, 2)'"));
  const TempDir temp;
  fs::create_directories(temp / "drawn");
  draw_figure(temp / "drawn", figure);
  const std::string svg = read_text(temp / "drawn" / "figure.svg");
  EXPECT_THAT(svg, HasSubstr("b: also4 (4, 4)"));
}

TEST(GnuplotQuoted, EndsNoStringWithinTheText) {
  EXPECT_EQ(gnuplot_quoted("it's"), "'it''s'");
  EXPECT_EQ(gnuplot_quoted("x\nsystem(\"touch y\")\n#"), "'x\\nsystem(\"touch y\")\\n#'");
}

TEST(DrawFigure, GoesToFoldersOfAnyName) {
  const TempDir temp;
  const fs::path before = fs::current_path();
  fs::current_path(temp / "");
  for (const char* name : {"~", "two\nlines"}) {
    fs::create_directory(name);
    draw_figure(name, figure_of(report_test::made_sweep()));
    EXPECT_EQ(names_in(name).size(), 4U) << name;
  }
  fs::current_path(before);
}

TEST(DrawFigure, LeavesFiguresScriptAndDataAndNothingElse) {
  const TempDir temp;
  const fs::path folder = temp / "it's a folder";
  fs::create_directories(folder);
  draw_figure(folder, figure_of(report_test::made_sweep()));
  EXPECT_EQ(names_in(folder),
            (std::vector<std::string>{"figure.gp", "figure.png", "figure.svg", "figure.tsv"}));
  EXPECT_EQ(read_text(folder / "figure.png").substr(1, 3), "PNG");
  const std::string svg = read_text(folder / "figure.svg");
  for (const char* text : {"router-norm-change", "random", "test accuracy, %", "forward time",
                           "experts kept in each layer, of 8", "parameters pruned, %"}) {
    EXPECT_THAT(svg, HasSubstr(text)) << text;
  }
  EXPECT_THAT(svg, HasSubstr("</svg>"));
}

TEST(DrawFigureFile, LeavesOneFigureWithItsScriptAndData) {
  const TempDir temp;
  const fs::path file = temp / "it's.png";
  const std::string script =
      "set terminal pngcairo\nset output " + gnuplot_quoted("it's.png") + "\nplot 'it''s.tsv'\n";
  draw_figure_file(file, {script, "1\t2\n3\t4\n"});
  EXPECT_EQ(names_in(file.parent_path()),
            (std::vector<std::string>{"it's.gp", "it's.png", "it's.tsv"}));
  EXPECT_EQ(read_text(file).substr(1, 3), "PNG");
  EXPECT_EQ(read_text(temp / "it's.gp"), script);
}

TEST(DrawFigure, AScriptThatFailsIsAnErrorAndLeavesNothing) {
  const TempDir temp;
  const fs::path folder = temp / "out";
  fs::create_directories(folder);
  const std::string error = error_of([&] {
    draw_figure(folder, {"plot 'no such file'\n", "1\t2\n"});
  });
  EXPECT_EQ(error.find("failure: "), 0u) << error;
  EXPECT_THAT(error, HasSubstr("figure.svg: gnuplot failed"));
  EXPECT_EQ(names_in(folder), std::vector<std::string>{});
}

TEST(DrawFigureFile, IsSilentOfWhatGnuplotWarnsOfAndSaysWhyItFailed) {
  const TempDir temp;
  const std::string head = "set terminal pngcairo\nset output 'a.png'\n";
  ::testing::internal::CaptureStderr();
  draw_figure_file(temp / "a.png", {head + "plot [0:1] [0:1] NaN title 'no points'\n", "1\t2\n"});
  const std::string error = error_of([&] {
    draw_figure_file(temp / "b.png", {"plot 'no such file'\n", "1\t2\n"});
  });
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
  EXPECT_THAT(error, HasSubstr("b.png: gnuplot failed with status 1: "));
  EXPECT_THAT(error, HasSubstr("No data in plot"));
}

TEST(DrawFigure, AScriptThatDrawsNothingIsAnError) {
  const TempDir temp;
  const fs::path folder = temp / "out";
  fs::create_directories(folder);
  const std::string error = error_of([&] { draw_figure(folder, {"a = 1\n", ""}); });
  EXPECT_THAT(error, HasSubstr("figure.svg: gnuplot drew nothing"));
  EXPECT_EQ(names_in(folder), std::vector<std::string>{});
}

TEST(DrawFigureFile, AFullDiskIsToldByThePlaceOfTheFile) {
  const TempDir temp;
  const std::string error = error_of([&] {
    const test::FileSizeLimit limit(100);
    draw_figure_file(temp / "a.png", {"plot 1\n", std::string(200, '1')});
  });
  EXPECT_EQ(error.find("failure: " + (temp / "a.png").string() + ": not drawn: "), 0U) << error;
  EXPECT_THAT(error, HasSubstr((temp / "a.tsv").string() + ": cannot write: "));
  EXPECT_EQ(temp.names(), std::vector<std::string>{});
}

TEST(DrawFigureFile, AFigureThatIsCutShortIsAnErrorAndLeavesNothing) {
  for (const std::string kind : {"png", "svg"}) {
    const TempDir temp;
    const std::string script = "set terminal " + std::string(kind == "png" ? "pngcairo" : "svg") +
                               "\nset output 'a." + kind +
                               "'\nplot for [i=1:50] sin(i * x) with lines\n";
    const std::string error = error_of([&] {
      const test::FileSizeLimit limit(8192);
      draw_figure_file(temp / ("a." + kind), {script, "1\t2\n"});
    });
    EXPECT_THAT(error, HasSubstr("a." + kind + ": gnuplot could not write the whole figure"));
    EXPECT_EQ(temp.names(), std::vector<std::string>{});
  }
}

}  // namespace
}  // namespace moesaic
