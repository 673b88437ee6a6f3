// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "panels.h"
#include "plots.h"

namespace moesaic {
namespace {

/// Returns the update that the row's curves begin with.
int64_t first_step(const PlotInput& input, const MeasuredRow& row) {
  return input.plot.last_phase ? row.earlier_phases : 0;
}

/// Returns the number of updates of the longest curve.
int64_t last_step(const PlotInput& input) {
  int64_t last = 1;
  for (const MeasuredRow& row : input.rows) {
    for (const RunRecord& run : row.runs) {
      last = std::max(last, run.final.step - first_step(input, row));
    }
  }
  return last;
}

/// Returns mean and spread by update, counted from `first` on, over the runs that have a snapshot
/// there. Appends the ends of the band to `ends`.
std::string curve_data(const MeasuredRow& row, const std::string& metric, int64_t first,
                       std::vector<double>& ends) {
  std::map<int64_t, std::vector<double>> by_step;
  for (const RunRecord& run : row.runs) {
    for (const Measurement& at : run.snapshots) {
      const auto found = at.numbers.find(metric);
      if (found == at.numbers.end() || at.step < first) continue;
      by_step[at.step - first].push_back(found->second);
    }
  }
  std::string data = "# updates\tmean\tstd\n";
  for (const auto& [step, values] : by_step) {
    const Moments over_runs = moments(values);
    data += fmt::format("{}\t{:.5f}\t{:.5f}\n", step, over_runs.mean, over_runs.std);
    ends.push_back(over_runs.mean - over_runs.std);
    ends.push_back(over_runs.mean + over_runs.std);
  }
  return data;
}

Panel number_panel(const PlotInput& input, const Metric& metric) {
  Panel panel;
  std::string bands, lines;
  std::vector<double> ends;
  for (const MeasuredRow& row : input.rows) {
    if (find_metric(row.metrics, metric.name) == nullptr) continue;
    const size_t block = panel.blocks.size(), series = block + 1;
    panel.blocks.push_back(curve_data(row, metric.name, first_step(input, row), ends));
    if (row.runs.size() > 1) {
      bands += fmt::format(
          "data index first + {} using 1:($2 - $3):($2 + $3) with filledcurves "
          "lc rgb colour_of({}) notitle, \\\n    ",
          block, series);
    }
    lines += fmt::format(
        "{}data index first + {} using 1:2 with lines lc rgb colour_of({}) "
        "dt dash_of({}) lw 2 title {}",
        lines.empty() ? "" : ", \\\n    ", block, series, series, plot_name(row.name));
  }
  panel.commands = fmt::format(
      "  unset title\n  set ylabel {} textcolor rgb ink\n  set yrange {}\n  plot {}{}\n",
      plot_name(metric.label), padded_range(ends), bands, lines);
  return panel;
}

/// Returns a line per snapshot: updates, then the table row by row. Appends its numbers to `all`.
std::string table_data(const RunRecord& run, const std::string& metric, std::vector<double>& all) {
  std::string data = "# updates\tentries row by row\n";
  for (const Measurement& at : run.snapshots) {
    data += fmt::format("{}", at.step);
    for (const auto& row : at.tables.at(metric).values) {
      for (const double value : row) data += fmt::format("\t{:.5f}", value);
      all.insert(all.end(), row.begin(), row.end());
    }
    data += "\n";
  }
  return data;
}

Panel table_panel(const PlotInput& input, const Metric& metric, const MeasuredRow& row) {
  const RunRecord& run = row.runs.front();
  const MeasuredTable& shape = run.snapshots.front().tables.at(metric.name);
  const size_t rows = shape.rows.size(), columns = shape.columns.size();
  const bool alone = input.rows.size() == 1 && row.runs.size() == 1;
  const std::string title = alone ? metric.label : name_of_first_run(row) + ", " + metric.label;
  std::vector<double> all;
  const std::string data = table_data(run, metric.name, all);
  std::string commands = fmt::format(
      "  set title {} textcolor rgb ink\n  unset ylabel\n  set yrange {}\n"
      "  plot for [k=1:{}] for [e=1:{}] data index first using 1:(column(1 + (e - 1) * {} + k)) "
      "with lines lc rgb colour_of(k) lw 1.2 notitle",
      plot_name(title), padded_range(all), columns, rows, columns);
  for (size_t k = 0; k < columns; ++k) {
    commands += fmt::format(", \\\n    NaN with lines lc rgb colour_of({}) lw 2 title {}", k + 1,
                            plot_name(shape.columns[k]));
  }
  return {commands + "\n", {data}};
}

}  // namespace

Figure curves_plot(const PlotInput& input) {
  std::vector<Panel> panels;
  for (const std::string& name : input.plot.metrics) {
    const Metric& metric = metric_of(input.rows, name);
    if (!metric.is_table) panels.push_back(number_panel(input, metric));
    for (const MeasuredRow& row : input.rows) {
      const auto& snapshots = row.runs.front().snapshots;
      const bool has = metric.is_table && !snapshots.empty() &&
                       std::all_of(snapshots.begin(), snapshots.end(),
                                   [&](const Measurement& at) { return at.tables.contains(name); });
      if (has) panels.push_back(table_panel(input, metric, row));
    }
  }
  const std::string head = fmt::format(
      "  set xrange [0:{}]\n  set xlabel 'updates' textcolor rgb ink\n"
      "  set key at graph 1, 1.01 right bottom horizontal Left reverse samplen 2 "
      "textcolor rgb ink\n  set title offset 0, 1.6\n",
      last_step(input));
  panels.front().commands.insert(0, head);
  PanelGrid grid{.columns = panels.size() > 1 ? 2 : 1, .top = 60, .gap_y = 110};
  if (panels.size() == 1) grid.width = 660, grid.height = 320;
  return panel_figure(input.stem, panels, grid);
}

}  // namespace moesaic
