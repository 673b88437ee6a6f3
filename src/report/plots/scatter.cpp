// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "moesaic/base/error.h"
#include "panels.h"
#include "plots.h"

namespace moesaic {

Figure scatter_plot(const PlotInput& input) {
  const Metric& x = metric_of(input.rows, input.plot.metrics[0]);
  const Metric& y = metric_of(input.rows, input.plot.metrics[1]);
  Panel panel;
  std::string points;
  std::vector<double> all_x, all_y;
  for (const MeasuredRow& row : input.rows) {
    const size_t before = all_x.size();
    std::string data = fmt::format("# {}\t{}\n", x.name, y.name);
    for (const RunRecord& run : row.runs) {
      const auto at_x = run.final.numbers.find(x.name), at_y = run.final.numbers.find(y.name);
      if (at_x == run.final.numbers.end() || at_y == run.final.numbers.end()) continue;
      data += fmt::format("{:.5f}\t{:.5f}\n", at_x->second, at_y->second);
      all_x.push_back(at_x->second);
      all_y.push_back(at_y->second);
    }
    if (all_x.size() == before) continue;
    const size_t block = panel.blocks.size();
    points += fmt::format(
        "{}data index first + {} using 1:2 with points lc rgb colour_of({}) pt {} title {}",
        block == 0 ? "" : ", \\\n    ", block, block + 1, 4 + block % 10, plot_name(row.name));
    panel.blocks.push_back(data);
  }
  if (panel.blocks.empty()) fail_usage("no run has both {} and {}", x.name, y.name);
  panel.commands = fmt::format(
      "  set xlabel {} textcolor rgb ink\n  set ylabel {} textcolor rgb ink\n"
      "  set xrange {}\n  set yrange {}\n  set grid xtics\n"
      "  set key outside right top Left reverse textcolor rgb ink\n  plot {}\n",
      plot_name(x.label), plot_name(y.label), padded_range(all_x), padded_range(all_y), points);
  return panel_figure(input.stem, {panel}, {.width = 520, .height = 380, .right = 250});
}

}  // namespace moesaic
