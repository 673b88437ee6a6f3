// SPDX-License-Identifier: Apache-2.0
#include "moesaic/report/run_curve.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "moesaic/base/error.h"
#include "moesaic/base/file.h"
#include "moesaic/base/process.h"
#include "plots/panels.h"

namespace moesaic {
namespace {

constexpr std::string_view kCurveStyle = R"(
train_color = '#56B4E9'
test_color = '#D55E00'
set xlabel 'updates' textcolor rgb ink
set key at graph 1, 1.02 right bottom horizontal samplen 2.4 textcolor rgb ink
do for [i=1:words(phase_ends)] {
  set arrow i from word(phase_ends, i), graph 0 to word(phase_ends, i), graph 1 nohead \
    lc rgb '#999999' lw 0.8 dt (4, 4)
}

)";

constexpr std::string_view kCurvePanels =
    R"(  set multiplot layout 1,2 margins screen 0.08, screen 0.97, screen 0.17, screen 0.86 \
    spacing screen 0.1
  do for [panel=1:2] {
    eval 'set yrange ' . word(y_ranges, panel)
    set ylabel (panel == 1 ? 'loss' : 'accuracy, %') textcolor rgb ink
    plot data index 0 using 1:(column(panel + 1)) with @train_style lc rgb train_color lw 1.5 \
           title 'training', \
         data index 1 using 1:(column(panel + 1)) with linespoints lc rgb test_color lw 2 pt 7 \
           ps 0.6 title 'test'
  }
  unset multiplot
}
)";

constexpr const char* kNoNumber = "NaN";

struct CurvePoint {
  int64_t step = 0;
  std::string loss, accuracy;
};

struct Curves {
  std::vector<CurvePoint> train, test;
  std::vector<int64_t> phase_ends;  ///< All except the last.
};

std::string number_in(const nlohmann::json& line, const char* key) {
  const auto found = line.find(key);
  return found != line.end() && found->is_number() ? found->dump() : kNoNumber;
}

Curves curves_of(std::string_view metrics) {
  Curves curves;
  std::istringstream lines{std::string(metrics)};
  std::string phase;
  int64_t last = 0;
  for (std::string text; std::getline(lines, text);) {
    const auto line = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (!line.is_object()) continue;
    const std::string kind = line.value("kind", "");
    if (kind != "train" && kind != "eval") continue;
    const CurvePoint point{line.value("step", int64_t{0}), number_in(line, "loss"),
                           number_in(line, "accuracy")};
    const std::string now = line.value("phase", "");
    if (!phase.empty() && now != phase) curves.phase_ends.push_back(last);
    phase = now;
    last = point.step;
    (kind == "train" ? curves.train : curves.test).push_back(point);
  }
  return curves;
}

/// gnuplot tells blocks apart by two blank lines; one without a point holds a point that is none.
std::string block(const std::string& title, const std::vector<CurvePoint>& points) {
  std::string text = "# " + title + ": step\tloss\taccuracy, %\n";
  if (points.empty()) text += "0\tNaN\tNaN\n";
  for (const CurvePoint& point : points) {
    text += fmt::format("{}\t{}\t{}\n", point.step, point.loss, point.accuracy);
  }
  return text + "\n\n";
}

/// gnuplot warns of an axis on which all points have one place: half a unit to each side is shown.
std::string axis_range(const std::vector<double>& values) {
  const auto [min, max] = std::minmax_element(values.begin(), values.end());
  if (values.empty()) return "[0:1]";
  return *min < *max ? "[*:*]" : fmt::format("[{}:{}]", *min - 0.5, *min + 0.5);
}

/// What gnuplot has to know before it draws: "[low:high]" of each axis, how points are joined.
std::string axes(const Curves& curves) {
  std::vector<double> steps;
  std::array<std::vector<double>, 2> heights;
  for (const auto* points : {&curves.train, &curves.test}) {
    for (const CurvePoint& point : *points) {
      steps.push_back(static_cast<double>(point.step));
      for (const auto& [height, text] :
           {std::pair{&heights[0], &point.loss}, std::pair{&heights[1], &point.accuracy}}) {
        if (*text != kNoNumber) height->push_back(std::stod(*text));
      }
    }
  }
  const char* style = curves.train.size() == 1 ? "points pt 7 ps 0.6" : "lines";
  return fmt::format("set xrange {}\ny_ranges = '{} {}'\ntrain_style = '{}'\n", axis_range(steps),
                     axis_range(heights[0]), axis_range(heights[1]), style);
}

}  // namespace

Figure run_curve(std::string_view metrics) {
  const Curves curves = curves_of(metrics);
  if (curves.train.empty() && curves.test.empty()) fail("metrics.jsonl: no line to draw");
  std::string ends;
  for (const int64_t step : curves.phase_ends) {
    if (!ends.empty()) ends += ' ';
    ends += fmt::to_string(step);
  }
  std::string script = script_head("figure");
  script += fmt::format("phase_ends = '{}'\n", ends) + axes(curves) + std::string(kCurveStyle);
  script += for_both_files("figure", 960, 400) + std::string(kCurvePanels);
  return {script, block("train", curves.train) + block("test", curves.test)};
}

void draw_run_curve(const std::filesystem::path& run) {
  const Figure figure = run_curve(read_text(run / "metrics.jsonl"));
  if (find_program("gnuplot").empty()) fail("gnuplot: no such program on PATH");
  draw_figure(run, figure);
}

}  // namespace moesaic
