// SPDX-License-Identifier: Apache-2.0
#include "moesaic/report/run_curve.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "moesaic/base/error.h"
#include "moesaic/base/file.h"
#include "moesaic/base/process.h"
#include "plots/panels.h"

namespace moesaic {
namespace {

using MetricsLine = nlohmann::json;

/// Lines of metrics.jsonl for training or one split.
struct Series {
  const char *name, *style;
  std::vector<MetricsLine> lines = {};
};

struct RunLines {
  std::vector<Series> series = {{"training", "lines"},
                                {"validation", "linespoints pt 7 ps 0.6"},
                                {"test", "linespoints pt 5 ps 0.6"}};
  std::vector<double> steps;
  std::vector<int64_t> phase_ends;  ///< Ends of all phases except the last.
};

RunLines lines_of(std::string_view metrics) {
  RunLines run;
  std::istringstream lines{std::string(metrics)};
  std::string phase;
  for (std::string text; std::getline(lines, text);) {
    MetricsLine line = MetricsLine::parse(text, nullptr, /*allow_exceptions=*/false);
    if (!line.is_object()) continue;
    const std::string kind = line.value("kind", "");
    if (kind != "train" && kind != "eval") continue;
    const auto step = line.value("step", int64_t{0});
    const std::string now = line.value("phase", "");
    if (!phase.empty() && now != phase) {
      run.phase_ends.push_back(static_cast<int64_t>(run.steps.back()));
    }
    phase = now;
    run.steps.push_back(static_cast<double>(step));
    const bool validates = line.value("split", "") == "validation";
    run.series[kind == "train" ? 0 : validates ? 1 : 2].lines.push_back(std::move(line));
  }
  return run;
}

/// Returns a panel with a curve for each series that has the metric; nothing where none has.
std::vector<Panel> metric_panel(const RunLines& run, const char* metric, const char* label) {
  Panel panel;
  std::string curves;
  std::vector<double> values;
  for (size_t i = 0; i < run.series.size(); ++i) {
    const Series& series = run.series[i];
    std::string points;
    const size_t before = values.size();
    for (const MetricsLine& line : series.lines) {
      const auto found = line.find(metric);
      if (found == line.end() || !found->is_number()) continue;
      points += fmt::format("{}\t{}\n", line.value("step", int64_t{0}), found->dump());
      values.push_back(found->get<double>());
    }
    if (points.empty()) continue;
    const bool single = values.size() == before + 1;
    curves += fmt::format(
        "{}data index first + {} using 1:2 with {} lc rgb colour_of({}) lw 1.5 title '{}'",
        curves.empty() ? "" : ", \\\n    ", panel.blocks.size(),
        single ? "points pt 7 ps 0.6" : series.style, i + 1, series.name);
    panel.blocks.push_back(fmt::format("# {}: updates\t{}\n{}", series.name, label, points));
  }
  if (curves.empty()) return {};
  panel.commands = fmt::format("  set ylabel {} textcolor rgb ink\n  set yrange {}\n  plot {}\n",
                               plot_name(label), padded_range(values), curves);
  return {panel};
}

/// Returns the commands before the first panel: the axis of updates, and the ends of phases.
std::string shared_commands(const RunLines& run) {
  const bool one_step = run.steps.front() == run.steps.back();
  std::string commands = fmt::format(
      "  set xlabel 'updates' textcolor rgb ink\n  set xrange {}\n"
      "  set key at graph 1, 1.02 right bottom horizontal samplen 2.4 textcolor rgb ink\n",
      one_step ? padded_range(run.steps) : "[*:*]");
  for (const int64_t end : run.phase_ends) {
    commands += fmt::format(
        "  set arrow from {0}, graph 0 to {0}, graph 1 nohead lc rgb '#999999' lw 0.8 dt (4, 4)\n",
        end);
  }
  return commands;
}

}  // namespace

Figure run_curve(std::string_view metrics) {
  const RunLines run = lines_of(metrics);
  std::vector<Panel> panels = metric_panel(run, "loss", "loss");
  for (Panel& panel : metric_panel(run, "accuracy", "accuracy, %")) panels.push_back(panel);
  if (panels.empty()) fail("metrics.jsonl: no line to draw");
  panels.front().commands.insert(0, shared_commands(run));
  return panel_figure("figure", panels, {.columns = 2});
}

void draw_run_curve(const std::filesystem::path& run) {
  const Figure figure = run_curve(read_text(run / "metrics.jsonl"));
  if (find_program("gnuplot").empty()) fail("gnuplot: no such program on PATH");
  draw_figure(run, figure);
}

}  // namespace moesaic
