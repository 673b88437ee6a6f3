// SPDX-License-Identifier: Apache-2.0
// Figures of what runs wrote to metrics.jsonl.
#include <fmt/format.h>

#include <array>
#include <set>

#include "moesaic/base/error.h"
#include "moesaic/base/file.h"
#include "moesaic/base/path.h"
#include "moesaic/config/document.h"
#include "moesaic/report/figure.h"
#include "panels.h"

namespace moesaic {
namespace {

constexpr std::array kDrawnMetrics = {"loss", "accuracy"};

/// Lines of metrics.jsonl for training or one split, on one dataset of a run.
struct Series {
  std::string name, data;
  std::vector<Json> lines = {};
  size_t colour = 0;  ///< Number of the line's colour, from 1.
  bool is_training = false;
};

struct PhaseSpan {
  std::string name;
  int64_t begin = 0, end = 0;
};

struct RunLines {
  std::vector<Series> series;
  std::vector<double> steps;
  std::vector<PhaseSpan> phases;
  std::set<std::string> data, metrics;
};

Series& series_of(RunLines& run, const std::string& name, const std::string& data) {
  for (Series& series : run.series) {
    if (series.name == name && series.data == data) return series;
  }
  const size_t colour = run.series.size() + 1;
  return run.series.emplace_back(Series{name, data, {}, colour, name == "training"});
}

/// Returns whether a line is one of training or of an evaluation.
bool is_drawn(const Json& line) {
  for (const char* key : {"phase", "split", "data"}) {
    if (!line.value(key, Json("")).is_string()) return false;
  }
  const Json kind = line.value("kind", Json());
  return (kind == "train" || kind == "eval") && line.value("step", Json()).is_number_integer();
}

/// Returns the lines of training and of evaluations.
RunLines lines_of(std::string_view metrics) {
  std::vector<Json> lines = metrics_lines(metrics);
  std::erase_if(lines, [](const Json& line) { return !is_drawn(line); });
  std::map<std::string, std::string> data;  // Of each phase; only evaluations name it.
  for (const Json& line : lines) {
    const std::string on = line.value("data", "");
    if (!on.empty()) data[line.value("phase", "")] = on;
  }
  RunLines run;
  for (Json& line : lines) {
    const std::string phase = line.value("phase", "");
    const auto step = line.at("step").get<int64_t>();
    if (run.phases.empty() || run.phases.back().name != phase) {
      const int64_t begin = run.phases.empty() ? 0 : run.phases.back().end;
      run.phases.push_back({phase, begin, step});
    }
    run.phases.back().end = step;
    run.steps.push_back(static_cast<double>(step));
    const std::string& on = data[phase];
    run.data.insert(on);
    for (const char* metric : kDrawnMetrics) {
      if (line.value(metric, Json()).is_number()) run.metrics.insert(metric);
    }
    const std::string name = line.at("kind") == "train" ? "training" : line.value("split", "test");
    series_of(run, name, on).lines.push_back(std::move(line));
  }
  return run;
}

/// Returns a point for each line that has the metric; a blank line parts phases.
std::string series_points(const Series& series, const char* metric, std::vector<double>& values) {
  std::string points, phase;
  for (const Json& line : series.lines) {
    const Json value = line.value(metric, Json());
    if (!value.is_number()) continue;
    const std::string before = std::exchange(phase, line.value("phase", ""));
    if (!points.empty() && phase != before) points += "\n";
    points += fmt::format("{}\t{}\n", line.at("step").get<int64_t>(), value.dump());
    values.push_back(value.get<double>());
  }
  return points;
}

/// Returns a panel with a curve for each series that has the metric.
Panel metric_panel(const RunLines& run, const char* metric, const char* label) {
  Panel panel;
  std::vector<double> values;
  for (const Series& series : run.series) {
    const size_t before = values.size();
    const std::string points = series_points(series, metric, values);
    if (points.empty()) continue;
    const bool single = values.size() == before + 1;
    const char* style = single               ? "points pt 7 ps 0.6"
                        : series.is_training ? "lines"
                                             : "linespoints pt 7 ps 0.6";
    const std::string name = run.data.size() > 1 && !series.data.empty()
                                 ? series.name + ", " + series.data
                                 : series.name;
    panel.plot(
        fmt::format("# {}: steps\t{}\n{}", name, label, points),
        fmt::format("using 1:2 with {0} lc rgb colour_of({1}) dt dash_of({1}) lw 1.5 title {2}",
                    style, series.colour, plot_name(name)));
  }
  panel.commands = axis_label("y", label) + fmt::format("  set yrange {}\n", padded_range(values));
  return panel;
}

/// Returns the commands before the first panel: the axis of steps, a line at the end of each
/// phase but the last, and the names of phases.
std::string shared_commands(const RunLines& run) {
  const auto [first, last] = std::ranges::minmax(run.steps);
  const bool one_step = first == last;
  std::string range = one_step ? padded_range(run.steps) : "[*:*]";
  if (!one_step && !run.phases.empty() && run.phases.back().begin == run.phases.back().end) {
    range = fmt::format("[*:{:.6g}]", 1.06 * static_cast<double>(run.phases.back().end));
  }  // Room for its name.
  std::string commands = fmt::format(
      "{}  set xrange {}\n  set key at graph 1, 1.02 right bottom maxcols 2 samplen 2.4 textcolor "
      "rgb ink\n",
      axis_label("x", "steps"), range);
  if (run.phases.size() < 2) return commands;
  std::map<int64_t, std::string> labels;  // Phases without steps share the place of the next one.
  for (const PhaseSpan& phase : run.phases) {
    std::string& text = labels[phase.begin];
    text += (text.empty() ? "" : ", ") + phase.name;
  }
  for (const auto& [begin, text] : labels) {
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

/// Returns the curves of the metrics that `wanted` names, a panel each.
Figure curves_of(const RunLines& run, const std::vector<const char*>& wanted,
                 const std::string& stem) {
  std::vector<Panel> panels;
  for (const char* metric : wanted) {
    panels.push_back(
        metric_panel(run, metric, std::string_view(metric) == "accuracy" ? "accuracy, %" : metric));
  }
  panels.front().commands.insert(0, shared_commands(run));
  const int rows = static_cast<int>(run.series.size() + 1) / 2;  // Of the key, two columns wide.
  return panel_figure(stem, panels, {.columns = 2, .top = 30 + 28 * rows});
}

/// Returns the drawn metrics that all of the runs have.
std::vector<const char*> common_metrics(const std::vector<RunLines>& runs) {
  std::vector<const char*> common(kDrawnMetrics.begin(), kDrawnMetrics.end());
  std::erase_if(common, [&](const char* metric) {
    return !std::ranges::all_of(runs,
                                [&](const RunLines& run) { return run.metrics.contains(metric); });
  });
  return common;
}

/// Values of a layer's experts, by expert and step.
using ExpertValues = std::map<int64_t, std::map<int64_t, double>>;

/// Returns a metric in each block from the lines of this kind; loads in % of a uniform one.
std::map<int64_t, ExpertValues> expert_values(const std::vector<Json>& lines, const char* kind,
                                              const std::string& metric) {
  std::map<int64_t, ExpertValues> blocks;
  for (const Json& line : lines) {
    if (line.value("kind", Json()) != kind) continue;
    for (const Json& layer : line.value("routing", Json::array())) {
      if (!layer.contains(metric)) continue;
      const auto kept = layer.at("kept").get<std::vector<int64_t>>();
      const auto values = layer.at(metric).get<std::vector<double>>();
      if (kept.size() != values.size()) {
        fail("metrics.jsonl: '{}' has another length than 'kept'", metric);
      }
      const double scale = metric == "load"      ? 100.0 * static_cast<double>(kept.size())
                           : metric == "dropped" ? 100.0
                                                 : 1.0;
      ExpertValues& block = blocks[layer.at("layer").get<int64_t>()];
      for (size_t i = 0; i < kept.size(); ++i) {
        block[kept[i]][line.at("step").get<int64_t>()] = scale * values[i];
      }
    }
  }
  return blocks;
}

/// Returns the values by expert and step; of many steps the means of as many neighbours as needed.
MeasuredTable expert_table(const ExpertValues& values) {
  constexpr size_t kMaxColumns = 60;
  std::set<int64_t> all;
  for (const auto& [expert, by_step] : values) {
    for (const auto& [step, value] : by_step) all.insert(step);
  }
  const std::vector<int64_t> steps(all.begin(), all.end());
  const size_t each = (steps.size() + kMaxColumns - 1) / kMaxColumns;
  MeasuredTable table;
  for (size_t first = 0; first < steps.size(); first += each) {
    table.columns.push_back(fmt::to_string(steps[std::min(first + each, steps.size()) - 1]));
  }
  for (const auto& [expert, by_step] : values) {
    table.rows.push_back(fmt::to_string(expert));
    std::vector<double>& row = table.values.emplace_back();
    for (size_t first = 0; first < steps.size(); first += each) {
      double sum = 0.0, count = 0.0;  // Experts that were pruned have no more.
      for (size_t i = first; i < std::min(first + each, steps.size()); ++i) {
        const auto found = by_step.find(steps[i]);
        if (found == by_step.end()) continue;
        sum += found->second;
        count += 1.0;
      }
      row.push_back(sum / count);
    }
  }
  return table;
}

}  // namespace

std::vector<Json> metrics_lines(std::string_view metrics) {
  std::vector<Json> lines;
  while (!metrics.empty()) {
    const size_t end = std::min(metrics.find('\n'), metrics.size());
    auto json = find_json(metrics.substr(0, end));
    if (json && json->is_object()) lines.push_back(std::move(*json));
    metrics.remove_prefix(std::min(end + 1, metrics.size()));
  }
  return lines;
}

std::string read_metrics(const fs::path& run) {
  if (!path_exists(run)) {
    fail_usage("{}: no such folder{}", run.string(), nearest_sibling(run));
  }
  if (!path_exists(run / "metrics.jsonl")) {
    fail_usage("{}: no run, since it has no metrics.jsonl; give a folder that train wrote",
               run.string());
  }
  return read_text(run / "metrics.jsonl", UINT64_MAX, "a file of metrics");
}

Figure run_curve(std::string_view metrics, const std::string& stem) {
  const RunLines run = lines_of(metrics);
  const std::vector<const char*> drawn = common_metrics({run});
  if (drawn.empty()) fail("metrics.jsonl: no line has loss or accuracy");
  return curves_of(run, drawn, stem);
}

Figure run_comparison(const std::vector<RunMetrics>& runs, const std::string& stem) {
  std::vector<RunLines> read;
  for (const RunMetrics& run : runs) {
    read.push_back(lines_of(run.lines));
    if (common_metrics({read.back()}).empty()) {
      fail_usage("{}: its metrics.jsonl has neither loss nor accuracy; leave it out", run.name);
    }
  }
  const std::vector<const char*> common = common_metrics(read);
  if (common.empty()) {
    fail_usage("the runs have neither loss nor accuracy in common; give runs that measure alike");
  }
  RunLines all;
  for (size_t i = 0; i < runs.size(); ++i) {
    all.steps.insert(all.steps.end(), read[i].steps.begin(), read[i].steps.end());
    all.data.merge(read[i].data);
    for (Series& series : read[i].series) {
      series.name = runs[i].name + ", " + series.name;
      series.colour = i + 1;
      all.series.push_back(std::move(series));
    }
  }
  return curves_of(all, common, stem);
}

Figure expert_figure(std::string_view metrics, const std::string& metric, const std::string& stem) {
  constexpr int kLine = 17;  // Pixels of an expert's name.
  constexpr size_t kMaxNames = 64;
  const std::vector<Json> lines = metrics_lines(metrics);
  auto blocks = expert_values(lines, "train", metric);
  if (blocks.empty()) blocks = expert_values(lines, "eval", metric);
  if (blocks.empty()) {
    fail_usage("metrics.jsonl: no line has '{}' of experts; give a run of a mixture{}", metric,
               metric == "dropped" ? " with capacities" : "");
  }
  const char* const title = metric == "load"      ? "load, % of a uniform one"
                            : metric == "dropped" ? "dropped tokens, %"
                                                  : "norm of the router's weights";
  std::vector<Panel> panels;
  size_t rows = 0;
  for (const auto& [block, values] : blocks) {
    const MeasuredTable table = expert_table(values);
    rows = std::max(rows, std::min(table.rows.size(), kMaxNames));
    panels.push_back(heatmap_panel({.title = fmt::format("block {}: {}", block, title),
                                    .x_label = "steps",
                                    .y_label = "expert",
                                    .table = table,
                                    .digits = metric == "router_norm" ? 3 : 1,
                                    .shows_numbers = false,
                                    .names_every_row = table.rows.size() <= kMaxNames,
                                    .uses_sqrt_colors = true}));
  }
  constexpr int kWidth = 480, kScale = scale_room(kWidth);
  return panel_figure(stem, panels,
                      {.columns = 2,
                       .width = kWidth,
                       .height = std::max(200, 60 + kLine * static_cast<int>(rows)),
                       .left = 80,
                       .right = kScale,
                       .bottom = 90,
                       .gap_x = 80 + kScale,
                       .gap_y = 120});
}

void draw_run_curve(const fs::path& run) {
  const Figure figure = run_curve(read_metrics(run));
  check_can_draw(run);
  draw_figure(run, figure);
}

}  // namespace moesaic
