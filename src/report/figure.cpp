// SPDX-License-Identifier: Apache-2.0
#include "moesaic/report/figure.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <system_error>
#include <vector>

#include "moesaic/base/error.h"
#include "moesaic/base/file.h"
#include "moesaic/base/path.h"
#include "moesaic/base/process.h"
#include "moesaic/base/text.h"
#include "moesaic/config/document.h"
#include "panels.h"

namespace moesaic {
namespace {

/// A hidden folder for files that go into `folder`, whose names messages show. It is removed on
/// destruction.
class ScratchDir {
 public:
  explicit ScratchDir(const fs::path& folder) : path_(unique_sibling(folder / ".")) {
    std::error_code error;
    fs::create_directories(path_, error);
    if (error) {
      const fs::path place = folder.empty() ? fs::current_path() : fs::absolute(folder);
      fail("{}: cannot write here: {}", place.string(), error.message());
    }
    held_ = lock_folder(path_);
  }
  ScratchDir(const ScratchDir&) = delete;
  ScratchDir& operator=(const ScratchDir&) = delete;
  ~ScratchDir() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
  UniqueFd held_;
};

/// Returns ": " and the last line that gnuplot wrote, which says what was wrong, "" without one.
std::string reason(std::string said) {
  said.erase(said.find_last_not_of(" \n") + 1);
  return said.empty() ? "" : ": " + one_line(said.substr(said.rfind('\n') + 1));
}

/// Throws Error unless gnuplot drew the file to its end: on a full disk it says nothing and
/// succeeds.
void check_drawn(const fs::path& drawn, const fs::path& file) {
  if (!fs::exists(drawn) || fs::is_empty(drawn)) fail("{}: gnuplot drew nothing", file.string());
  sync_path(drawn);
  std::string text = read_text(drawn);
  text.erase(text.find_last_not_of('\n') + 1);
  const bool whole = file.extension() == ".png" ? text.ends_with("IEND\xAE\x42\x60\x82")
                                                : text.ends_with("</svg>");
  if (!whole) {
    fail("{}: gnuplot could not write the whole figure; is the disk full?", file.string());
  }
}

/// Draws `files` from the script and its data, and moves all of them to `folder`, or none if one
/// cannot be made.
void draw_in(const fs::path& folder, const std::string& stem, const Figure& figure,
             std::vector<std::string> files) {
  const ScratchDir scratch_dir(folder);
  const std::string script = stem + ".gp", data = stem + ".tsv";
  try {
    write_atomic(scratch_dir.path() / script, figure.script);
    write_atomic(scratch_dir.path() / data, figure.data);
  } catch (const IoError& error) {
    fail("{}: not drawn: {}", (folder / files[0]).string(), error.what());
  }
  // gnuplot warns of entries of a key that have no points and of fonts that a machine lacks. That
  // is nothing to a user whose figure was drawn. In a locale without UTF-8 it could not show some
  // characters.
  std::string said;
  const int status =
      run_with_input({"gnuplot"}, figure.script, {"LC_ALL=C.UTF-8"}, scratch_dir.path(), &said);
  if (status != 0) {
    fail("{}: gnuplot failed with status {}{}", (folder / files[0]).string(), status, reason(said));
  }
  for (const std::string& file : files) check_drawn(scratch_dir.path() / file, folder / file);
  files.insert(files.end(), {script, data});
  for (const std::string& file : files) {
    std::error_code error;
    fs::rename(scratch_dir.path() / file, folder / file, error);
    if (error) fail("{}: cannot rename into place: {}", (folder / file).string(), error.message());
  }
}

constexpr std::array kDrawnMetrics = {"loss", "accuracy"};

/// What a figure needs of a line of metrics.jsonl.
struct MetricsLine {
  std::string kind, phase, split, data;
  int64_t step = 0;
  std::map<std::string, Json> numbers = {};
};

/// Lines of metrics.jsonl for training or one split, on one dataset.
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

Series& series_of(RunLines& run, const std::string& name, const std::string& data) {
  for (Series& series : run.series) {
    if (series.name == name && series.data == data) return series;
  }
  return run.series.emplace_back(Series{name, data});
}

/// Returns what a line says; nothing of one that is incomplete, or about something else.
std::optional<MetricsLine> line_of(std::string_view text) {
  const Json json = find_json(text).value_or(nullptr);
  if (!json.is_object()) return std::nullopt;
  bool sound = true;
  const auto string = [&](const char* key, const char* fallback) -> std::string {
    const auto found = json.find(key);
    sound = sound && (found == json.end() || found->is_string());
    return sound && found != json.end() ? found->get<std::string>() : fallback;
  };
  MetricsLine line{string("kind", ""), string("phase", ""), string("split", "test"),
                   string("data", "")};
  const auto step = json.find("step");
  if (!sound || step == json.end() || !step->is_number_integer()) return std::nullopt;
  if (line.kind != "train" && line.kind != "eval") return std::nullopt;
  line.step = step->get<int64_t>();
  for (const char* metric : kDrawnMetrics) {
    const auto found = json.find(metric);
    if (found != json.end() && found->is_number()) line.numbers[metric] = *found;
  }
  return line;
}

/// Returns the lines of training and of evaluations.
RunLines lines_of(std::string_view metrics) {
  std::vector<MetricsLine> lines;
  std::map<std::string, std::string> data;  // Of each phase; only evaluations name it.
  while (!metrics.empty()) {
    const size_t end = std::min(metrics.find('\n'), metrics.size());
    if (auto line = line_of(metrics.substr(0, end))) {
      if (!line->data.empty()) data[line->phase] = line->data;
      lines.push_back(std::move(*line));
    }
    metrics.remove_prefix(std::min(end + 1, metrics.size()));
  }
  RunLines run;
  for (MetricsLine& line : lines) {
    if (run.phases.empty() || run.phases.back().name != line.phase) {
      const int64_t begin = run.phases.empty() ? 0 : run.phases.back().end;
      run.phases.push_back({line.phase, begin, line.step});
    }
    run.phases.back().end = line.step;
    run.steps.push_back(static_cast<double>(line.step));
    const std::string& on = data[line.phase];
    run.data.insert(on);
    const std::string name = line.kind == "train" ? "training" : line.split;
    series_of(run, name, on).lines.push_back(std::move(line));
  }
  return run;
}

/// Returns a point for each line that has the metric; a blank line parts phases.
std::string series_points(const Series& series, const char* metric, std::vector<double>& values) {
  std::string points, phase;
  for (const MetricsLine& line : series.lines) {
    const auto found = line.numbers.find(metric);
    if (found == line.numbers.end()) continue;
    if (!points.empty() && line.phase != phase) points += "\n";
    phase = line.phase;
    points += fmt::format("{}\t{}\n", line.step, found->second.dump());
    values.push_back(found->second.get<double>());
  }
  return points;
}

/// Returns a panel with a curve for each series that has the metric; without plots where none has.
Panel metric_panel(const RunLines& run, const char* metric, const char* label) {
  Panel panel;
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
    panel.plot(
        fmt::format("# {}: steps\t{}\n{}", name, label, points),
        fmt::format("using 1:2 with {0} lc rgb colour_of({1}) dt dash_of({1}) lw 1.5 title {2}",
                    style, i + 1, plot_name(name)));
  }
  panel.commands = axis_label("y", label) + fmt::format("  set yrange {}\n", padded_range(values));
  return panel;
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
      "{}  set xrange {}\n  set key at graph 1, 1.02 right bottom maxcols 2 samplen 2.4 textcolor "
      "rgb ink\n",
      axis_label("x", "steps"), range);
  if (run.phases.size() == 1) return commands;
  std::map<int64_t, std::string> labels;  // Phases without updates share the place of the next one.
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

/// Throws Error if a figure could not be drawn, for callers that have work to do before.
void check_can_draw(const fs::path& folder) {
  if (find_program("gnuplot").empty()) {
    fail(
        "gnuplot: no such program on PATH; it draws the figures: install it, e.g. Debian's "
        "gnuplot-nox");
  }
  check_can_write(folder);
}

}  // namespace

std::string gnuplot_quoted(const std::string& text) {
  std::string result = "'";
  // A line break would end the string, and the rest would run as commands.
  for (const char c : one_line(text, text.size())) result += c == '\'' ? "''" : std::string(1, c);
  return result + "'";
}

void check_can_write(const fs::path& folder) {
  const ScratchDir can_write(folder);
}

void check_new_figure(const fs::path& file, const std::string& what) {
  const std::string extension = file.extension().string();
  if (extension != ".png" && extension != ".svg") {
    fail_usage("{}: the figure's name must end in .png or .svg, found '{}'", what, file.string());
  }
  for (const fs::path& path :
       {file, fs::path(file).replace_extension(".gp"), fs::path(file).replace_extension(".tsv")}) {
    check_new_file(path, what);
  }
  check_can_draw(file.parent_path());
}

void draw_figure(const fs::path& folder, const Figure& figure, const std::string& stem) {
  draw_in(folder, stem, figure, {stem + ".svg", stem + ".png"});
}

void draw_figure_file(const fs::path& file, const Figure& figure) {
  draw_in(file.parent_path(), file.stem().string(), figure, {file.filename().string()});
}

Figure run_curve(std::string_view metrics) {
  const RunLines run = lines_of(metrics);
  std::vector<Panel> panels = {metric_panel(run, kDrawnMetrics[0], "loss"),
                               metric_panel(run, kDrawnMetrics[1], "accuracy, %")};
  std::erase_if(panels, [](const Panel& panel) { return panel.plots.empty(); });
  if (panels.empty()) fail("metrics.jsonl: no line to draw");
  panels.front().commands.insert(0, shared_commands(run));
  const int rows = static_cast<int>(run.series.size() + 1) / 2;  // Of the key, two columns wide.
  return panel_figure("figure", panels, {.columns = 2, .top = 30 + 20 * rows});
}

void draw_run_curve(const fs::path& run) {
  constexpr uint64_t kAnySize = std::numeric_limits<uint64_t>::max();  // But of a regular file.
  const Figure figure = run_curve(read_text(run / "metrics.jsonl", kAnySize, "a file of metrics"));
  check_can_draw(run);
  draw_figure(run, figure);
}

}  // namespace moesaic
