// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "panels.h"
#include "plots.h"

namespace moesaic {
namespace {

Panel table_panel(const MeasuredRow& row, const Metric& metric) {
  const MeasuredTable& table = row.runs.front().final.tables.at(metric.name);
  std::string data = "# column\trow\tvalue\n";
  std::vector<double> all;
  for (size_t r = 0; r < table.rows.size(); ++r) {
    for (size_t c = 0; c < table.columns.size(); ++c) {
      data += fmt::format("{}\t{}\t{:.{}f}\n", c, r, table.values[r][c], metric.digits);
      all.push_back(table.values[r][c]);
    }
  }
  // The entries are boxes, since gnuplot's images have at least two rows and columns.
  return {fmt::format("  set title {} textcolor rgb ink\n  set xtics {} rotate by -45\n"
                      "  set ytics {}\n  set xrange [-0.5:{}.5]\n  set yrange [{}.5:-0.5]\n"
                      "  set cbrange {}\n"
                      "  plot data index first using 1:2:($1 - 0.5):($1 + 0.5):($2 - 0.5):"
                      "($2 + 0.5):3 with boxxyerror fc palette fs solid noborder notitle, \\\n"
                      "    data index first using 1:2:3 with labels textcolor rgb ink notitle\n",
                      plot_name(name_of_first_run(row) + ": " + metric.label),
                      named_tics(table.columns), named_tics(table.rows), table.columns.size() - 1,
                      table.rows.size() - 1, padded_range(all)),
          {data}};
}

}  // namespace

Figure heatmap_plot(const PlotInput& input) {
  std::vector<Panel> panels;
  for (const std::string& name : input.plot.metrics) {
    for (const MeasuredRow& row : input.rows) {
      const Metric* metric = find_metric(row.metrics, name);
      if (metric != nullptr) panels.push_back(table_panel(row, *metric));
    }
  }
  panels.front().commands.insert(0, "  unset grid\n  unset colorbox\n  unset key\n");
  return panel_figure(input.stem, panels,
                      {.columns = 2, .height = 200, .left = 110, .bottom = 80, .gap_x = 110});
}

}  // namespace moesaic
