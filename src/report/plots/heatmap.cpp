// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "moesaic/base/text.h"
#include "panels.h"
#include "plots.h"

namespace moesaic {
namespace {

constexpr const char* kNumbers =
    ", \\\n    data index first using 1:2:3 with labels textcolor rgb ink notitle";

constexpr size_t kMaxColumnNames = 40;  // Tables of more columns are wide.

std::string axis_label(const char* axis, const std::string& label) {
  return label.empty()
             ? ""
             : fmt::format("  set {}label {} textcolor rgb ink\n", axis, plot_name(label));
}

/// Returns the commands for the names along an axis; of more than `most` every n-th is shown.
std::string axis_names(const char* axis, const std::vector<std::string>& names, bool shown,
                       size_t most) {
  if (!shown) return fmt::format("  unset {}tics\n", axis);
  constexpr size_t kShown = 20;
  const size_t step = names.size() > most ? (names.size() + kShown - 1) / kShown : 1;
  return fmt::format("  set {}tics {}{}\n", axis, named_tics(names, step),
                     *axis == 'x' ? " rotate by -45" : "");
}

/// Returns the title as an expression of lines that are no wider than the panel, where it is known.
std::string title_lines(std::string title, int width) {
  if (width == 0) return plot_name(title);
  std::replace(title.begin(), title.end(), '_', ' ');
  constexpr int kCharacter = 9;  // Pixels of an average one.
  std::string lines;
  for (const std::string& line :
       split(wrapped(title, static_cast<size_t>(width / kCharacter), ""), '\n')) {
    lines += (lines.empty() ? "" : ".\"\\n\".") + plot_name(line);
  }
  return lines;
}

}  // namespace

Panel heatmap_panel(const HeatMap& map) {
  const MeasuredTable& table = map.table;
  std::string data = "# column\trow\tvalue\n";
  std::vector<double> all;
  for (size_t r = 0; r < table.rows.size(); ++r) {
    for (size_t c = 0; c < table.columns.size(); ++c) {
      data += fmt::format("{}\t{}\t{:.{}f}\n", c, r, table.values[r][c], map.digits);
      all.push_back(map.root_colors ? std::sqrt(table.values[r][c]) : table.values[r][c]);
    }
  }
  // The entries are boxes, since gnuplot's images have at least two rows and columns.
  return {fmt::format("  unset grid\n  unset colorbox\n  unset key\n"
                      "  set title {} textcolor rgb ink\n{}{}{}{}"
                      "  set xrange [-0.5:{}.5]\n  set yrange [{}.5:-0.5]\n"
                      "  set cbrange {}\n"
                      "  plot data index first using 1:2:($1 - 0.5):($1 + 0.5):($2 - 0.5):"
                      "($2 + 0.5):{} with boxxyerror fc palette fs solid noborder notitle{}\n",
                      title_lines(map.title, map.width), axis_label("x", map.x_label),
                      axis_label("y", map.y_label),
                      axis_names("x", table.columns, map.names, kMaxColumnNames),
                      axis_names("y", table.rows, map.names, table.rows.size()),
                      table.columns.size() - 1, table.rows.size() - 1, padded_range(all),
                      map.root_colors ? "(sqrt($3))" : "3", map.numbers ? kNumbers : ""),
          {data}};
}

Figure heatmap_plot(const PlotInput& input) {
  constexpr size_t kMaxWithNumbers = 12;  // Numbers of more columns would cover each other.
  constexpr int kLine = 17;               // Pixels of a row's name.
  std::vector<HeatMap> maps;
  int height = 200;
  bool wide = false;
  for (const std::string& name : input.plot.metrics) {
    for (const MeasuredRow& row : input.rows) {
      const Metric* metric = find_metric(row.metrics, name);
      if (metric == nullptr) continue;
      const auto& tables = row.runs.front().final.tables;
      if (!tables.contains(name)) continue;
      const MeasuredTable& table = tables.at(name);
      wide = wide || table.columns.size() > kMaxColumnNames;
      height = std::max(height, 60 + kLine * static_cast<int>(table.rows.size()));
      maps.push_back({.title = name_of_first_run(row) + ": " + metric->label,
                      .table = table,
                      .digits = metric->digits,
                      .numbers = table.columns.size() <= kMaxWithNumbers});
    }
  }
  PanelGrid grid{.columns = 2, .height = height, .left = 110, .top = 70, .bottom = 80};
  // A column of many has a few pixels only if its panel has the figure's whole width.
  if (wide) grid = {.columns = 1, .width = 960, .height = height, .left = 170, .bottom = 90};
  grid.gap_x = grid.left;
  grid.gap_y = 120;
  std::vector<Panel> panels;
  for (HeatMap& map : maps) {
    map.width = grid.width;
    panels.push_back(heatmap_panel(map));
  }
  if (panels.empty()) panels.push_back(panel_of_nothing());
  return panel_figure(input.stem, panels, grid);
}

}  // namespace moesaic
