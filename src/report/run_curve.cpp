// SPDX-License-Identifier: Apache-2.0
#include "moesaic/report/run_curve.h"

#include <fmt/format.h>

#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "moesaic/base/error.h"
#include "moesaic/base/file.h"
#include "moesaic/config/document.h"
#include "plots/panels.h"

namespace moesaic {
namespace {

using MetricsLine = nlohmann::ordered_json;

/// Lines of metrics.jsonl for training or one split, on one data set.
struct Series {
  std::string name, data;
  std::vector<MetricsLine> lines = {};
};

struct PhaseSpan {
  std::string name;
  int64_t begin = 0, end = 0;
};

struct RunLines {
  std::vector<Series> series;
  std::vector<double> steps;
  std::vector<PhaseSpan> phases;
  std::set<std::string> data;
};

/// Returns the lines of training and of evaluations.
std::vector<MetricsLine> metrics_lines(std::string_view metrics) {
  std::vector<MetricsLine> found;
  std::istringstream lines{std::string(metrics)};
  for (std::string text; std::getline(lines, text);) {
    MetricsLine line = find_json(text).value_or(nullptr);
    if (!line.is_object()) continue;
    const std::string kind = line.value("kind", "");
    if (kind == "train" || kind == "eval") found.push_back(std::move(line));
  }
  return found;
}

Series& series_of(RunLines& run, const std::string& name, const std::string& data) {
  for (Series& series : run.series) {
    if (series.name == name && series.data == data) return series;
  }
  return run.series.emplace_back(Series{name, data});
}

RunLines lines_of(std::string_view metrics) {
  std::vector<MetricsLine> lines = metrics_lines(metrics);
  std::map<std::string, std::string> data;  // Of each phase; only evaluations name it.
  for (const MetricsLine& line : lines) {
    if (line.contains("data")) data[line.value("phase", "")] = line.value("data", "");
  }
  RunLines run;
  for (MetricsLine& line : lines) {
    const auto step = line.value("step", int64_t{0});
    const std::string phase = line.value("phase", "");
    if (run.phases.empty() || run.phases.back().name != phase) {
      const int64_t begin = run.phases.empty() ? 0 : run.phases.back().end;
      run.phases.push_back({phase, begin, step});
    }
    run.phases.back().end = step;
    run.steps.push_back(static_cast<double>(step));
    run.data.insert(data[phase]);
    const bool trains = line.value("kind", "") == "train";
    const std::string split = line.value("split", "test");
    series_of(run, trains ? "training" : split, data[phase]).lines.push_back(std::move(line));
  }
  return run;
}

/// Returns a point for each line that has the metric; a blank line parts phases.
std::string series_points(const Series& series, const char* metric, std::vector<double>& values) {
  std::string points, phase;
  for (const MetricsLine& line : series.lines) {
    const auto found = line.find(metric);
    if (found == line.end() || !found->is_number()) continue;
    const std::string now = line.value("phase", "");
    if (!points.empty() && now != phase) points += "\n";
    phase = now;
    points += fmt::format("{}\t{}\n", line.value("step", int64_t{0}), found->dump());
    values.push_back(found->get<double>());
  }
  return points;
}

/// Returns a panel with a curve for each series that has the metric; nothing where none has.
std::vector<Panel> metric_panel(const RunLines& run, const char* metric, const char* label) {
  Panel panel;
  std::string curves;
  std::vector<double> values;
  for (size_t i = 0; i < run.series.size(); ++i) {
    const Series& series = run.series[i];
    const size_t before = values.size();
    const std::string points = series_points(series, metric, values);
    if (points.empty()) continue;
    const bool single = values.size() == before + 1;
    const char* style = single                      ? "points pt 7 ps 0.6"
                        : series.name == "training" ? "lines"
                                                    : "linespoints pt 7 ps 0.6";
    const std::string name = run.data.size() > 1 && !series.data.empty()
                                 ? series.name + ", " + series.data
                                 : series.name;
    curves += fmt::format(
        "{}data index first + {} using 1:2 with {} lc rgb colour_of({}) dt dash_of({}) lw 1.5 "
        "title {}",
        curves.empty() ? "" : ", \\\n    ", panel.blocks.size(), style, i + 1, i + 1,
        plot_name(name));
    panel.blocks.push_back(fmt::format("# {}: updates\t{}\n{}", name, label, points));
  }
  if (curves.empty()) return {};
  panel.commands = fmt::format("  set ylabel {} textcolor rgb ink\n  set yrange {}\n  plot {}\n",
                               plot_name(label), padded_range(values), curves);
  return {panel};
}

/// Returns the names of phases, each at the update at which it begins; those without updates share
/// the place of the next one.
std::map<int64_t, std::string> phase_labels(const std::vector<PhaseSpan>& phases) {
  std::map<int64_t, std::string> labels;
  for (const PhaseSpan& phase : phases) {
    std::string& text = labels[phase.begin];
    text += (text.empty() ? "" : ", ") + phase.name;
  }
  return labels;
}

/// Returns the commands before the first panel: the axis of updates, a line at the end of each
/// phase but the last, and the names of phases.
std::string shared_commands(const RunLines& run) {
  const bool one_step = run.steps.front() == run.steps.back();
  const PhaseSpan& last = run.phases.back();
  std::string range = one_step ? padded_range(run.steps) : "[*:*]";
  if (!one_step && last.begin == last.end) {  // Room for its name.
    range = fmt::format("[*:{:.6g}]", 1.06 * static_cast<double>(last.end));
  }
  std::string commands = fmt::format(
      "  set xlabel 'updates' textcolor rgb ink\n  set xrange {}\n"
      "  set key at graph 1, 1.02 right bottom maxcols 2 samplen 2.4 textcolor rgb ink\n",
      range);
  if (run.phases.size() == 1) return commands;
  for (const auto& [begin, text] : phase_labels(run.phases)) {
    commands += fmt::format(
        "  set label {} at {}, graph 0.97 right rotate by 90 offset character 0.8, 0 "
        "textcolor rgb '#666666'\n",
        plot_name(text), begin);
  }
  for (size_t i = 0; i + 1 < run.phases.size(); ++i) {
    commands += fmt::format(
        "  set arrow from {0}, graph 0 to {0}, graph 1 nohead lc rgb '#999999' lw 0.8 dt (4, 4)\n",
        run.phases[i].end);
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
  const int rows = static_cast<int>(run.series.size() + 1) / 2;  // Of the key, two columns wide.
  return panel_figure("figure", panels, {.columns = 2, .top = 30 + 20 * rows});
}

void draw_run_curve(const std::filesystem::path& run) {
  const Figure figure = run_curve(read_text(run / "metrics.jsonl"));
  check_can_draw(run);
  draw_figure(run, figure);
}

}  // namespace moesaic
