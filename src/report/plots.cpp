// SPDX-License-Identifier: Apache-2.0
// Plots of an experiment's runs, one file each.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>

#include "moesaic/report/runs.h"
#include "panels.h"

namespace moesaic {
namespace {

constexpr const char* kKeyAbove =
    "  set key at graph 1, 1.02 right bottom horizontal Left reverse samplen 2 textcolor rgb ink\n";
constexpr const char* kMeasured = "title 'measured, mean and spread of the runs'";

struct PlotInput {
  const PlotConfig& plot;
  const std::vector<MeasuredRow>& all_rows;  ///< Those that have the plot's metrics, shown or not.
  const std::vector<MeasuredRow>& rows;
  const std::vector<ResultRow>& results;
  std::string stem;  ///< Stem of the file names.
  const std::vector<FitConfig>& fits;
};

/// Returns "value <tab> spread"; the spread of a single number is 0. Appends the ends of its bar to
/// `ends`.
std::string with_spread(const std::optional<double>& value, const std::optional<double>& std,
                        const Metric& metric, std::vector<double>& ends) {
  if (!value) return "-\t-";
  const double half = std.value_or(0.0);
  for (const double end : {*value - half, *value + half}) {
    ends.push_back(std::clamp(end, metric.min, metric.max));
  }
  return fmt::format("{:.4f}\t{:.4f}", *value, half);
}

/// Returns the panels in two columns; a panel alone is larger.
Figure in_two_columns(const PlotInput& input, const std::vector<Panel>& panels, int height) {
  PanelGrid grid{.columns = 2, .top = 60, .gap_y = 110};
  if (panels.size() == 1) grid.width = 660, grid.height = height;
  return panel_figure(input.stem, panels, grid);
}

Panel points_panel(const PlotInput& input, const std::string& metric, bool first) {
  const Metric& what = metric_of(input.all_rows, metric);
  std::vector<std::string> names;
  std::string data = "# place\tmean\tstd\tpaper\tpaper std\n";
  std::vector<double> ends;
  bool paper = false;
  for (const ResultRow& row : input.results) {
    if (row.metric != metric) continue;
    data +=
        fmt::format("{}\t{}\t{}\n", names.size(), with_spread(row.measured, row.std, what, ends),
                    with_spread(row.paper.value, row.paper.std, what, ends));
    names.push_back(row.name);
    paper = paper || row.paper.value;
  }
  if (names.empty()) return panel_of_nothing();
  Panel panel{fmt::format(
      "  unset title\n  set grid xtics noytics lt 1 lc rgb '#E2E2E2' lw 0.8\n{}{}"
      "  set xrange {}\n  set yrange [{}.7:-0.7]\n  set ytics {}\n{}",
      axis_label("x", what.label), range_commands(what), padded_range(ends), names.size() - 1,
      named_tics(names),
      first ? "  set key at graph 0, 1.02 left bottom horizontal Left reverse samplen 1.5 "
              "textcolor rgb ink\n"
            : "  unset key\n")};
  panel.plot(data, fmt::format("using 2:($1 - 0.12):(within($2 - $3)):(within($2 + $3)) with "
                               "xerrorbars lc rgb colour_of(1) lw 2 pt 7 ps 0.7 {}",
                               kMeasured));
  if (paper) {
    panel.plot_again(
        "using 4:($1 + 0.16):(within($4 - $5)):(within($4 + $5)) with xerrorbars "
        "lc rgb colour_of(2) lw 2 pt 4 ps 0.8 title 'the paper''s'");
  }
  return panel;
}

/// Returns a plot of the rows of each metric with standard deviations, beside the paper's values.
Figure points_plot(const PlotInput& input) {
  std::vector<Panel> panels;
  for (const std::string& metric : input.plot.metrics) {
    panels.push_back(points_panel(input, metric, panels.empty()));
  }
  const int rows = static_cast<int>(std::max<size_t>(input.rows.size(), 2));
  return panel_figure(input.stem, panels, {.width = 560, .height = 24 * rows, .left = 270});
}

/// Returns the step that the row's curves begin with.
int64_t first_step(const PlotInput& input, const MeasuredRow& row) {
  return input.plot.last_phase ? row.steps_before_last_phase : 0;
}

/// Returns the number of steps of the longest curve.
int64_t last_step(const PlotInput& input) {
  int64_t last = 1;
  for (const MeasuredRow& row : input.rows) {
    for (const RunRecord& run : row.runs)
      last = std::max(last, run.final.step - first_step(input, row));
  }
  return last;
}

/// Returns mean and spread by step, counted from `first` on, over the runs that have a snapshot
/// there. Appends the ends of the band to `ends`, on a logarithmic axis means above 0 only.
std::string curve_data(const MeasuredRow& row, const Metric& metric, int64_t first, bool log_y,
                       std::vector<double>& ends) {
  std::map<int64_t, std::vector<double>> by_step;
  for (const RunRecord& run : row.runs) {
    for (const Measurement& at : run.snapshots) {
      const auto found = at.numbers.find(metric.name);
      if (found == at.numbers.end() || at.step < first) continue;
      by_step[at.step - first].push_back(found->second);
    }
  }
  std::string data = "# steps\tmean\tstd\n";
  for (const auto& [step, values] : by_step) {
    const auto [mean, std, n] = moments(values);
    if (log_y && !(mean > 0.0)) continue;
    const char* format = log_y ? "{}\t{:.5g}\t{:.5g}\n" : "{}\t{:.5f}\t{:.5f}\n";
    data += fmt::format(fmt::runtime(format), step, mean, std.value_or(0.0));
    with_spread(mean, log_y ? std::nullopt : std, metric, ends);
  }
  return data;
}

Panel number_panel(const PlotInput& input, Metric metric) {
  const bool log_y = input.plot.log_y;
  Panel panel;
  std::vector<std::string> lines;
  std::vector<double> ends;
  for (const MeasuredRow& row : input.rows) {
    if (find_metric(row.metrics, metric.name) == nullptr) continue;
    const size_t block = panel.blocks.size();
    panel.blocks.push_back(curve_data(row, metric, first_step(input, row), log_y, ends));
    if (row.runs.size() > 1) {
      panel.plot_again(
          fmt::format("using 1:(within($2 - $3)):(within($2 + $3)) with filledcurves "
                      "lc rgb colour_of({}) notitle",
                      block + 1));
    }
    lines.push_back(
        fmt::format("data index first + {} using 1:2 with lines lc rgb colour_of({}) "
                    "dt dash_of({}) lw 2 title {}",
                    block, block + 1, block + 1, plot_name(row.name)));
  }
  if (lines.empty()) return panel_of_nothing();
  panel.plots.insert(panel.plots.end(), lines.begin(), lines.end());  // Over all bands.
  std::string range = padded_range(ends);
  if (log_y && !ends.empty()) {  // Bands end where a logarithm can show them.
    metric.min = std::max(metric.min, *std::ranges::min_element(ends) / 2.0);
    range = fmt::format("[{:.6g}:*]\n  set logscale y", metric.min);
  }
  panel.commands = fmt::format("  unset title\n{}{}  set yrange {}\n",
                               axis_label("y", metric.label), range_commands(metric), range);
  return panel;
}

/// Returns a line per snapshot: its step, then the table row by row. Appends its numbers to `all`.
std::string table_data(const RunRecord& run, const std::string& metric, std::vector<double>& all) {
  std::string data = "# steps\tentries row by row\n";
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
  const size_t columns = shape.columns.size();
  const bool alone = input.rows.size() == 1 && row.runs.size() == 1;
  const std::string title = alone ? metric.label : first_run_name(row) + ", " + metric.label;
  std::vector<double> all;
  Panel panel{.blocks = {table_data(run, metric.name, all)}};
  panel.commands =
      fmt::format("  set title {} textcolor rgb ink\n  unset ylabel\n  set yrange {}\n",
                  plot_name(title), padded_range(all));
  panel.plots.push_back(
      fmt::format("for [k=1:{0}] for [e=1:{1}] data index first using 1:(column(1 + (e - 1) * {0} "
                  "+ k)) with lines lc rgb colour_of(k) lw 1.2 notitle",
                  columns, shape.rows.size()));
  for (size_t k = 0; k < columns; ++k) {
    panel.plots.push_back(fmt::format("NaN with lines lc rgb colour_of({}) lw 2 title {}", k + 1,
                                      plot_name(shape.columns[k])));
  }
  return panel;
}

/// Returns a plot of snapshots over steps. A number has a line for each row, the mean over its
/// runs, in a band of their standard deviation; a table has a panel for each row, in which every
/// entry of its first run is a line, coloured by its column.
Figure curves_plot(const PlotInput& input) {
  std::vector<Panel> panels;
  for (const std::string& name : input.plot.metrics) {
    const Metric& metric = metric_of(input.all_rows, name);
    if (!metric.is_table) panels.push_back(number_panel(input, metric));
    for (const MeasuredRow& row : input.rows) {
      const auto& snapshots = row.runs.front().snapshots;
      const bool has = metric.is_table && !snapshots.empty() &&
                       std::all_of(snapshots.begin(), snapshots.end(),
                                   [&](const Measurement& at) { return at.tables.contains(name); });
      if (has) panels.push_back(table_panel(input, metric, row));
    }
  }
  if (panels.empty()) panels.push_back(panel_of_nothing());
  panels.front().commands.insert(
      0, fmt::format("  set xrange [0:{}]\n{}{}  set title offset 0, 1.6\n", last_step(input),
                     axis_label("x", "steps"), kKeyAbove));
  return in_two_columns(input, panels, 320);
}

/// Calls action(row, metric, table) for the tables at the end of each row's first run.
void for_each_table(const PlotInput& input, const auto& action) {
  for (const std::string& name : input.plot.metrics) {
    for (const MeasuredRow& row : input.rows) {
      const auto& tables = row.runs.front().final.tables;
      const Metric* const metric = find_metric(row.metrics, name);
      if (metric != nullptr && tables.contains(name)) action(row, *metric, tables.at(name));
    }
  }
}

/// Returns a plot of the tables at the end of each row's first run.
Figure heatmap_plot(const PlotInput& input) {
  constexpr size_t kMaxWithNumbers = 12;  // Numbers of more columns would cover each other.
  constexpr size_t kWide = 40;
  constexpr int kLine = 17;  // Pixels of a row's name.
  std::vector<HeatMap> maps;
  int height = 200;
  bool wide = false;
  for_each_table(input, [&](const auto& row, const Metric& metric, const MeasuredTable& table) {
    wide = wide || table.columns.size() > kWide;
    height = std::max(height, 60 + kLine * static_cast<int>(table.rows.size()));
    maps.push_back({.title = first_run_name(row) + ": " + metric.label,
                    .table = table,
                    .digits = metric.digits,
                    .shows_numbers = table.columns.size() <= kMaxWithNumbers});
  });
  PanelGrid grid{.columns = 2, .height = height, .left = 110, .top = 70, .bottom = 80};
  // A column of many has a few pixels only if its panel has the figure's whole width.
  if (wide) grid = {.columns = 1, .width = 960, .height = height, .left = 170, .bottom = 90};
  grid.right = scale_room(grid.width);
  grid.gap_x = grid.left + grid.right;
  grid.gap_y = 120;
  std::vector<Panel> panels;
  for (HeatMap& map : maps) {
    map.width = grid.width;
    panels.push_back(heatmap_panel(map));
  }
  if (panels.empty()) panels.push_back(panel_of_nothing());
  return panel_figure(input.stem, panels, grid);
}

/// Returns the panel of the lines of a table from `row` on that are named alike up to a comma: a
/// stem for each number over its column. `row` becomes that of the next panel.
Panel stems_panel(const std::string& title, const MeasuredTable& table, size_t& row) {
  constexpr size_t kMaxNames = 40, kShown = 20;
  const auto owner = [&](size_t r) { return table.rows[r].substr(0, table.rows[r].find(',')); };
  const std::string name = owner(row);
  const size_t columns = table.columns.size();
  std::string data = "# column\tvalue\n";
  std::vector<double> all = {0.0};
  for (; row < table.rows.size() && owner(row) == name; ++row) {
    for (size_t c = 0; c < columns; ++c)
      data += fmt::format("{}\t{:.5g}\n", c, table.values[row][c]);
    all.insert(all.end(), table.values[row].begin(), table.values[row].end());
  }
  Panel panel{fmt::format(
      "  set title {} textcolor rgb ink\n  unset key\n  set xzeroaxis lt 1 lc rgb '#666666' lw "
      "0.8\n"
      "  set xtics {} rotate by -45\n  set xrange [-1:{}]\n  set yrange {}\n",
      plot_name(name + ", " + title),
      named_tics(table.columns, columns > kMaxNames ? (columns + kShown - 1) / kShown : 1), columns,
      padded_range(all))};
  panel.plot(data, "using 1:2 with impulses lc rgb colour_of(1) lw 1.5 notitle");
  panel.plot_again("using 1:2 with points lc rgb colour_of(1) pt 7 ps 0.4 notitle");
  return panel;
}

/// Returns a plot of the tables at the end of each row's first run as stems over their columns, a
/// panel for lines that share a name up to a comma, such as the neurons of an expert.
Figure stems_plot(const PlotInput& input) {
  std::vector<Panel> panels;
  for_each_table(input, [&](const auto& row, const Metric& metric, const MeasuredTable& table) {
    const std::string title = metric.label + "; " + first_run_name(row);
    for (size_t r = 0; r < table.rows.size();) panels.push_back(stems_panel(title, table, r));
  });
  if (panels.empty()) panels.push_back(panel_of_nothing());
  return panel_figure(input.stem, panels,
                      {.width = 960, .height = 150, .bottom = 90, .gap_y = 120});
}

/// Returns the name of a series without what stands between it and a size.
std::string series_name(std::string series) {
  const size_t end = series.find_last_of("/,");
  return end == std::string::npos ? series : series.substr(0, end);
}

Panel lines_panel(const PlotInput& input, const std::string& name) {
  const Metric& metric = metric_of(input.all_rows, name);
  Panel panel;
  std::vector<double> ends;
  for (const std::string& series : input.plot.series) {
    std::string data = "# x\tmean\tstd\n";
    for (const double x : input.plot.x) {
      const ResultRow* const row = find_result(input.results, row_of_size(series, x), name);
      if (row == nullptr) continue;
      data += fmt::format("{}\t{}\n", x, with_spread(row->measured, row->std, metric, ends));
    }
    panel.plot(data, fmt::format("using 1:2:(within($2 - $3)):(within($2 + $3)) with yerrorlines "
                                 "lc rgb colour_of({0}) dt dash_of({0}) lw 2 pt 7 ps 0.6 title {1}",
                                 panel.blocks.size() + 1, plot_name(series_name(series))));
  }
  const auto [least, most] = std::minmax_element(input.plot.x.begin(), input.plot.x.end());
  const double margin = *most > *least ? 0.04 * (*most - *least) : 0.5;
  panel.commands =
      fmt::format("  unset title\n{}{}{}  set xrange [{}:{}]\n  set yrange {}\n",
                  axis_label("x", input.plot.x_label), axis_label("y", metric.label),
                  range_commands(metric), *least - margin, *most + margin, padded_range(ends));
  return panel;
}

/// Returns a plot of each metric over a size: a line for each curve, with standard deviations.
Figure lines_plot(const PlotInput& input) {
  std::vector<Panel> panels;
  for (const std::string& metric : input.plot.metrics) panels.push_back(lines_panel(input, metric));
  panels.front().commands.insert(0, kKeyAbove);
  return in_two_columns(input, panels, 360);
}

/// Returns a heat map of each metric's means: curves by sizes.
Figure map_plot(const PlotInput& input) {
  std::vector<Panel> panels;
  for (const std::string& name : input.plot.metrics) {
    MeasuredTable table;
    for (const double x : input.plot.x) table.columns.push_back(fmt::format("{}", x));
    for (const std::string& series : input.plot.series) {
      table.rows.push_back(series_name(series));
      std::vector<double>& values = table.values.emplace_back();
      for (const double x : input.plot.x) {
        const ResultRow* const row = find_result(input.results, row_of_size(series, x), name);
        values.push_back(row == nullptr ? std::numeric_limits<double>::quiet_NaN() : row->measured);
      }
    }
    const Metric& metric = metric_of(input.all_rows, name);
    panels.push_back(heatmap_panel({.title = metric.label,
                                    .x_label = input.plot.x_label,
                                    .table = table,
                                    .digits = metric.digits}));
  }
  const int width = 140 + 52 * static_cast<int>(input.plot.x.size());
  return panel_figure(input.stem, panels,
                      {.width = width,
                       .height = 120 + 34 * static_cast<int>(input.plot.series.size()),
                       .left = 110,
                       .right = scale_room(width),
                       .bottom = 90});
}

/// Returns a plot with every run as a point by two metrics, coloured by row.
Figure scatter_plot(const PlotInput& input) {
  const Metric& x = metric_of(input.all_rows, input.plot.metrics[0]);
  const Metric& y = metric_of(input.all_rows, input.plot.metrics[1]);
  Panel panel;
  std::vector<double> all_x, all_y;
  for (const MeasuredRow& row : input.rows) {
    const size_t before = all_x.size(), block = panel.blocks.size();
    std::string data = fmt::format("# {}\t{}\n", x.name, y.name);
    for (const RunRecord& run : row.runs) {
      const auto at_x = run.final.numbers.find(x.name), at_y = run.final.numbers.find(y.name);
      if (at_x == run.final.numbers.end() || at_y == run.final.numbers.end()) continue;
      data += fmt::format("{:.5f}\t{:.5f}\n", at_x->second, at_y->second);
      all_x.push_back(at_x->second);
      all_y.push_back(at_y->second);
    }
    if (all_x.size() == before) continue;
    panel.plot(data, fmt::format("using 1:2 with points lc rgb colour_of({}) pt {} title {}",
                                 block + 1, 4 + block % 10, plot_name(row.name)));
  }
  if (panel.blocks.empty()) return panel_figure(input.stem, {panel_of_nothing()}, {});
  panel.commands = fmt::format(
      "{}{}  set xrange {}\n  set yrange {}\n  set grid xtics\n"
      "  set key outside right top Left reverse textcolor rgb ink\n",
      axis_label("x", x.label), axis_label("y", y.label), padded_range(all_x), padded_range(all_y));
  return panel_figure(input.stem, {panel}, {.width = 520, .height = 380, .right = 250});
}

/// Returns the panel of a fit; its rows are those of `input`.
Panel fit_panel(const PlotInput& input, const FitConfig& fit) {
  std::string data = "# x\tmean\tstd\n";
  std::vector<std::string> tics;
  double n = 0.0, x = 0.0, y = 0.0, least = 1e300, most = 0.0, lowest = 1e300;
  for (const FitPoint& point : fit_points(fit, input.results)) {
    data += fmt::format("{:.6g}\t{:.6g}\t{:.6g}\n", point.x, point.y, point.std);
    tics.push_back(fmt::format("{:.6g}", point.x));
    n += 1.0;
    x += std::log(point.x);
    y += std::log(point.y);
    least = std::min(least, point.x);
    most = std::max(most, point.x);
    lowest = std::min(lowest, point.y - point.std > 0.0 ? point.y - point.std : point.y / 2.0);
  }
  if (tics.empty()) return panel_of_nothing();
  Metric metric = metric_of(input.all_rows, fit.metric);
  if (fit.level) {
    metric = {.label = fmt::format("size at which {} reaches {}", metric.label, *fit.level),
              .min = 0.0};
  }
  metric.min = std::max(metric.min, lowest);  // A logarithm has no 0.
  Panel panel{fmt::format(
      "  set logscale xy\n  set grid xtics\n  set xtics ({})\n{}{}{}"
      "  set xrange [{:.6g}:{:.6g}]\n  set key left top Left reverse textcolor rgb ink\n",
      fmt::join(tics, ", "), axis_label("x", input.plot.x_label.empty() ? "x" : input.plot.x_label),
      axis_label("y", metric.label), range_commands(metric), least / 1.2, most * 1.2)};
  panel.plot(data, fmt::format("using 1:2:(within($2 - $3)):(within($2 + $3)) with yerrorbars "
                               "lc rgb colour_of(1) lw 2 pt 7 ps 0.7 {}",
                               kMeasured));
  // The power law goes through the points' centre of logarithms.
  const auto add = [&](double exponent, const char* whose, int colour) {
    panel.plots.push_back(
        fmt::format("{0:.6g} * (x / {1:.6g}) ** {2:.6g} with lines lc rgb colour_of({3}) lw 1.5 "
                    "dt {3} title '{4} {2:.2f}'",
                    std::exp(y / n), std::exp(x / n), exponent, colour, whose));
  };
  const ResultRow* const found = find_result(input.results, fit.name, fit.exponent());
  if (found != nullptr) add(found->measured, "fitted exponent", 1);
  if (found != nullptr && found->paper.value) add(*found->paper.value, "the paper''s exponent", 2);
  return panel;
}

/// Returns a plot of the fits of its metrics over x, both logarithmic, with the power laws of the
/// fitted exponent and of the paper's.
Figure power_plot(const PlotInput& input) {
  std::vector<Panel> panels;
  for (const FitConfig& fit : input.fits) {
    if (std::ranges::count(input.plot.metrics, fit.metric) == 0) continue;
    panels.push_back(fit_panel(input, fit));
  }
  return panel_figure(input.stem, panels, {.columns = 2, .width = 520, .height = 360, .left = 110});
}

/// Whether the number says when an accuracy converged that is no better than that of guessing.
bool is_chance(const ResultRow& number, const std::vector<MeasuredRow>& rows,
               const std::vector<ResultRow>& results) {
  for (const std::string_view prefix : {kConverged, kSecondsTo}) {
    if (!number.metric.starts_with(prefix)) continue;
    const std::string of = number.metric.substr(prefix.size());
    const ResultRow* const reached = find_result(results, number.name, of);
    return reached != nullptr && reached->measured <= metric_of(rows, of).chance_level;
  }
  return false;
}

}  // namespace

std::vector<Figure> runs_figures(const RunsConfig& config, const std::vector<MeasuredRow>& rows,
                                 const Results& results) {
  static const std::map<std::string, Figure (*)(const PlotInput&)> kKinds = {
      {"points", points_plot}, {"curves", curves_plot},   {"heatmap", heatmap_plot},
      {"lines", lines_plot},   {"scatter", scatter_plot}, {"power", power_plot},
      {"map", map_plot},       {"stems", stems_plot}};
  std::vector<Figure> figures;
  for (const PlotConfig& plot : config.plots) {
    const auto hidden = [&](const auto& row) {
      return !plot.rows.empty() && std::ranges::count(plot.rows, row.name) == 0;
    };
    std::vector<MeasuredRow> measured = rows;
    std::vector<ResultRow> numbers = results.rows;
    std::erase_if(measured, hidden);
    std::erase_if(numbers, [&](const ResultRow& row) {
      return hidden(row) || is_chance(row, rows, results.rows);
    });
    figures.push_back(kKinds.at(plot.kind)(
        {plot, rows, measured, numbers, figure_stem(figures.size()), config.fits}));
  }
  return figures;
}

}  // namespace moesaic
