// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "panels.h"
#include "plots.h"

namespace moesaic {
namespace {

/// Returns "value <tab> spread"; the spread of a single number is 0.
std::string with_spread(const std::optional<double>& value, const std::optional<double>& std) {
  return value ? fmt::format("{:.4f}\t{:.4f}", *value, std.value_or(0.0)) : "-\t-";
}

Panel points_panel(const PlotInput& input, const std::string& metric, bool first) {
  std::vector<std::string> names;
  std::string data = "# place\tmean\tstd\tpaper\tpaper std\n";
  std::vector<double> ends;
  bool paper = false;
  for (const ResultRow& row : input.results) {
    if (row.metric != metric) continue;
    data += fmt::format("{}\t{}\t{}\n", names.size(), with_spread(row.measured, row.std),
                        with_spread(row.paper, row.paper_std));
    names.push_back(row.name);
    for (const double sign : {-1.0, 1.0}) {
      ends.push_back(row.measured + sign * row.std.value_or(0.0));
      if (row.paper) ends.push_back(*row.paper + sign * row.paper_std.value_or(0.0));
    }
    paper = paper || row.paper;
  }
  if (names.empty()) return panel_of_nothing();
  const Metric& what = metric_of(input.rows, metric);
  std::string commands = fmt::format(
      "  set grid xtics noytics lt 1 lc rgb '#E2E2E2' lw 0.8\n"
      "  set xlabel {} textcolor rgb ink\n  set xrange {}\n  set yrange [{}.7:-0.7]\n"
      "  set ytics {}\n",
      plot_name(what.label), padded_range(ends), names.size() - 1, named_tics(names));
  commands += first ? "  set key at graph 0, 1.02 left bottom horizontal Left reverse samplen 1.5 "
                      "textcolor rgb ink\n"
                    : "  unset key\n";
  commands +=
      "  plot data index first using 2:($1 - 0.12):3 with xerrorbars lc rgb colour_of(1) lw 2 "
      "pt 7 ps 0.7 title 'measured, mean and spread of the runs'";
  if (paper) {
    commands +=
        ", \\\n    data index first using 4:($1 + 0.16):5 with xerrorbars lc rgb colour_of(2) "
        "lw 2 pt 4 ps 0.8 title 'the paper''s'";
  }
  return {commands + "\n", {data}};
}

}  // namespace

Figure points_plot(const PlotInput& input) {
  std::vector<Panel> panels;
  for (const std::string& metric : input.plot.metrics) {
    panels.push_back(points_panel(input, metric, panels.empty()));
  }
  PanelGrid grid{.width = 560, .left = 270};
  grid.height = 24 * static_cast<int>(std::max<size_t>(input.rows.size(), 2));
  return panel_figure(input.stem, panels, grid);
}

}  // namespace moesaic
