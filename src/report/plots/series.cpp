// SPDX-License-Identifier: Apache-2.0
// Plots of rows that are named by a curve and a size.
#include <fmt/format.h>

#include <algorithm>

#include "moesaic/report/ratio.h"
#include "panels.h"
#include "plots.h"

namespace moesaic {
namespace {

const ResultRow* result_of(const PlotInput& input, const std::string& metric,
                           const std::string& series, double x) {
  const std::string name = row_of_size(series, x);
  const auto found =
      std::find_if(input.results.begin(), input.results.end(),
                   [&](const ResultRow& row) { return row.name == name && row.metric == metric; });
  return found == input.results.end() ? nullptr : &*found;
}

/// Returns the name of a series without what stands between it and a size.
std::string series_name(std::string series) {
  const size_t end = series.find_last_of("/,");
  return end == std::string::npos ? series : series.substr(0, end);
}

Panel lines_panel(const PlotInput& input, const std::string& metric) {
  Panel panel;
  std::string lines;
  std::vector<double> ends;
  for (const std::string& series : input.plot.series) {
    std::string data = "# x\tmean\tstd\n";
    for (const double x : input.plot.x) {
      const ResultRow* const row = result_of(input, metric, series, x);
      if (row == nullptr) continue;
      const double std = row->std.value_or(0.0);
      data += fmt::format("{}\t{:.4f}\t{:.4f}\n", x, row->measured, std);
      ends.push_back(row->measured - std);
      ends.push_back(row->measured + std);
    }
    const size_t block = panel.blocks.size();
    lines += fmt::format(
        "{}data index first + {} using 1:2:3 with yerrorlines lc rgb colour_of({}) dt dash_of({}) "
        "lw 2 pt 7 ps 0.6 title {}",
        block == 0 ? "" : ", \\\n    ", block, block + 1, block + 1,
        plot_name(series_name(series)));
    panel.blocks.push_back(data);
  }
  const auto [least, most] = std::minmax_element(input.plot.x.begin(), input.plot.x.end());
  const double margin = *most > *least ? 0.04 * (*most - *least) : 0.5;
  panel.commands = fmt::format(
      "  unset title\n  set xlabel {} textcolor rgb ink\n  set ylabel {} textcolor rgb ink\n"
      "  set xrange [{}:{}]\n  set yrange {}\n  plot {}\n",
      plot_name(input.plot.x_label), plot_name(metric_of(input.rows, metric).label),
      *least - margin, *most + margin, padded_range(ends), lines);
  return panel;
}

}  // namespace

Figure lines_plot(const PlotInput& input) {
  std::vector<Panel> panels;
  for (const std::string& metric : input.plot.metrics) panels.push_back(lines_panel(input, metric));
  panels.front().commands.insert(
      0,
      "  set key at graph 1, 1.02 right bottom horizontal Left reverse samplen 2 "
      "textcolor rgb ink\n");
  PanelGrid grid{.columns = panels.size() > 1 ? 2 : 1, .top = 60, .gap_y = 110};
  if (panels.size() == 1) grid.width = 660, grid.height = 360;
  return panel_figure(input.stem, panels, grid);
}

Figure map_plot(const PlotInput& input) {
  std::vector<MeasuredTable> tables;
  for (const std::string& metric : input.plot.metrics) {
    MeasuredTable& table = tables.emplace_back();
    for (const double x : input.plot.x) table.columns.push_back(fmt::format("{}", x));
    for (const std::string& series : input.plot.series) {
      table.rows.push_back(series_name(series));
      std::vector<double>& values = table.values.emplace_back();
      for (const double x : input.plot.x) {
        const ResultRow* const row = result_of(input, metric, series, x);
        values.push_back(row == nullptr ? 0.0 : row->measured);
      }
    }
  }
  std::vector<Panel> panels;
  for (size_t i = 0; i < tables.size(); ++i) {
    const Metric& metric = metric_of(input.rows, input.plot.metrics[i]);
    panels.push_back(heatmap_panel({.title = metric.label,
                                    .x_label = input.plot.x_label,
                                    .y_label = "",
                                    .table = tables[i],
                                    .digits = metric.digits}));
  }
  return panel_figure(input.stem, panels,
                      {.columns = 1,
                       .width = 140 + 52 * static_cast<int>(input.plot.x.size()),
                       .height = 120 + 34 * static_cast<int>(input.plot.series.size()),
                       .left = 110,
                       .bottom = 90,
                       .gap_x = 110});
}

}  // namespace moesaic
