// SPDX-License-Identifier: Apache-2.0
#include "moesaic/report/evaluation_figures.h"

#include <torch/torch.h>

#include "moesaic/base/file.h"
#include "report/report_fixture.h"
#include "support/matchers.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;
using report_test::error_of;
using report_test::TempDir;

/// Two lines of points, one above and one below the axis, each predicted as its label.
at::Tensor two_lines() {
  const at::Tensor x = torch::linspace(-1, 1, 40, torch::kDouble);
  return torch::cat({torch::stack({x, torch::full({40}, 0.5, torch::kDouble)}, 1),
                     torch::stack({x, torch::full({40}, -0.5, torch::kDouble)}, 1)});
}

EvaluationPoints points_of_lines() {
  EvaluationPoints points;
  points.data = "lines";
  points.classes = {"it's below", "above_it"};
  points.num_experts = 4;
  points.color = "expert";
  points.x_ND = two_lines().to(torch::kFloat);
  points.index_N = torch::arange(80);
  points.label_N = points.predicted_N = (torch::arange(80) < 40).to(torch::kLong);
  points.expert_N = torch::where(torch::arange(80) < 40, 2, torch::arange(80) % 2 - 1);
  return points;
}

TEST(PlaneAverage, IsTheNearbyPointsMeanAndFarAwayTheNearestValue) {
  const at::Tensor label = points_of_lines().label_N;
  const PlaneGrid grid = plane_average(two_lines(), label, 41);
  EXPECT_NEAR(grid.x_G[0].item<double>(), -1.08, 1e-12);
  EXPECT_NEAR(grid.y_G[40].item<double>(), 0.58, 1e-12);
  for (int64_t c = 0; c < 41; ++c) {
    EXPECT_GT(grid.value_GG[40][c].item<double>(), 0.99);
    EXPECT_LT(grid.value_GG[0][c].item<double>(), 0.01);
    EXPECT_NEAR(grid.value_GG[20][c].item<double>(), 0.5, 1e-6);  // on the axis between them
  }
  // By the formula, at a node of no particular place.
  const at::Tensor squares =
      (two_lines() - torch::stack({grid.x_G[7], grid.y_G[23]})).square().sum(1);
  const at::Tensor weight = (-squares / (2.0 * 2.0 * 1.0 / 80.0)).exp();
  EXPECT_NEAR(grid.value_GG[23][7].item<double>(),
              ((weight * label).sum() / weight.sum()).item<double>(), 1e-9);
}

TEST(TsneFigure, HasTheDataOfEveryPointAndALineOfTheKeyForWhatIsThere) {
  const Figure figure = tsne_figure(points_of_lines(), two_lines(), false, "lines");
  EXPECT_EQ(figure.data.substr(0, figure.data.find('\n', 60)),
            "# image\tx\ty\tlabel\tpredicted\texpert (from 0)\tgroup\n"
            "0\t-1.0000\t0.5000\t1\t1\t2\t-");
  for (const char* text :
       {"data = 'lines.tsv'", "stem = 'lines'", "by = 6\n", "markers = 2\n", "title 'no expert'",
        "title 'expert 1'", "title 'expert 3'", "title 'it''s below'", "title 'above_it'"}) {
    EXPECT_THAT(figure.script, HasSubstr(text)) << text << "\n" << figure.script;
  }
  EXPECT_THAT(figure.script, Not(HasSubstr("title 'expert 2'")));
  EXPECT_THAT(figure.script, Not(HasSubstr("title 'boundary'")));
}

TEST(TsneFigure, IsDrawnWithItsBoundaryAndEveryEntryOfTheKey) {
  const TempDir temp;
  draw_figure_file(temp / "lines.svg", tsne_figure(points_of_lines(), two_lines(), true, "lines"));
  const std::string svg = read_text(temp / "lines.svg");
  for (const char* text :
       {"boundary", "no expert", "expert 1", "expert 3", "it's below", "above_it"}) {
    EXPECT_THAT(svg, HasSubstr(text)) << text;
  }
}

TEST(TsneFigure, WhereAllPredictionsAgreeThereIsNoBoundary) {
  EvaluationPoints points = points_of_lines();
  points.predicted_N = torch::ones_like(points.label_N);
  const Figure figure = tsne_figure(points, two_lines(), true, "lines");
  EXPECT_THAT(figure.script, Not(HasSubstr("$boundary")));
  EXPECT_THAT(figure.data, Not(HasSubstr("share of predictions")));
}

TEST(TsneFigure, ManyKindsHaveColoursOfTheirOwnAndALongKeyIsLeftOut) {
  EvaluationPoints points = points_of_lines();
  points.color = "class";
  for (const int64_t kinds : {10, 40}) {
    points.classes.clear();
    for (int64_t c = 0; c < kinds; ++c) points.classes.push_back("kind " + std::to_string(c));
    points.label_N = torch::arange(80) % kinds;
    const TempDir temp;
    const Figure figure = tsne_figure(points, two_lines(), false, "lines");
    draw_figure_file(temp / "lines.png", figure);
    EXPECT_EQ(figure.script.find("title 'kind 9'") != std::string::npos, kinds == 10);
    const size_t begin = figure.script.find("array palette");
    const std::string palette =
        figure.script.substr(begin, figure.script.find('\n', begin) - begin);
    std::set<std::string> colors;
    for (size_t at = palette.find("0x"); at != palette.npos; at = palette.find("0x", at + 1)) {
      colors.insert(palette.substr(at, 8));
    }
    EXPECT_EQ(static_cast<int64_t>(colors.size()), kinds);
  }
}

TEST(TsneFigure, FewOfManyKindsHaveColoursThatAreFarApart) {
  EvaluationPoints points = points_of_lines();
  points.color = "class";
  points.classes.assign(10, "kind");
  points.label_N = torch::where(torch::arange(80) < 40, 6, 8).to(torch::kLong);
  const std::string script = tsne_figure(points, two_lines(), false, "lines").script;
  const std::string palette = script.substr(script.find("array palette"));
  EXPECT_EQ(palette.substr(0, palette.find('\n')),
            "array palette[10] = [0x000000, 0x000000, 0x000000, 0x000000, 0x000000, 0x000000, "
            "0x0072B2, 0x000000, 0xD55E00, 0x000000]");
}

TEST(DrawTsne, DrawsOrStopsAndThenLeavesNothing) {
  const TempDir temp;
  const fs::path folder = temp / "out";
  fs::create_directories(folder);
  int64_t calls = 0;
  EXPECT_FALSE(draw_tsne(points_of_lines(), false, folder / "lines.png",
                         [&](int64_t, int64_t) { return ++calls < 3; }));
  EXPECT_EQ(calls, 3);
  EXPECT_TRUE(fs::is_empty(folder));
  EXPECT_TRUE(draw_tsne(points_of_lines(), true, folder / "lines.png", {}));
  EXPECT_EQ(read_text(folder / "lines.png").substr(1, 3), "PNG");
}

TEST(CheckNewFigure, WantsAKnownEndingAndAPlaceThatIsFree) {
  const TempDir temp;
  EXPECT_THAT(error_of([&] { check_new_figure(temp / "a.jpg", "--tsne"); }),
              HasSubstr("usage: --tsne: the figure's name must end in .png or .svg, found '"));
  check_new_figure(temp / "a.png", "--tsne");
  write_atomic(temp / "a.tsv", "");
  EXPECT_THAT(error_of([&] { check_new_figure(temp / "a.png", "--tsne"); }), HasSubstr("a.tsv"));
}

}  // namespace
}  // namespace moesaic
