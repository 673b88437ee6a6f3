// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "moesaic/base/error.h"
#include "panels.h"
#include "plots.h"

namespace moesaic {
namespace {

/// A power law through the points' centre of logarithms.
struct PowerLaw {
  double exponent = 0.0, x = 0.0, y = 0.0;

  std::string formula() const {
    return fmt::format("{:.6g} * (x / {:.6g}) ** {:.6g}", y, x, exponent);
  }
};

const ResultRow* exponent_of(const PlotInput& input, const FitConfig& fit) {
  const auto found = std::find_if(input.results.begin(), input.results.end(), [&](const auto& row) {
    return row.name == fit.name && row.metric == fit.exponent();
  });
  return found == input.results.end() ? nullptr : &*found;
}

/// Returns the panel of a fit; its rows are those of `input`.
Panel fit_panel(const PlotInput& input, const FitConfig& fit) {
  Panel panel;
  std::string data = "# x\tmean\tstd\n";
  std::vector<std::string> tics;
  double n = 0.0, x = 0.0, y = 0.0, least = 1e300, most = 0.0;
  for (const ResultRow& row : input.results) {
    const auto at = fit.x.find(row.name);
    if (row.metric != fit.metric || at == fit.x.end()) continue;
    data +=
        fmt::format("{:.6g}\t{:.6g}\t{:.6g}\n", at->second, row.measured, row.std.value_or(0.0));
    tics.push_back(fmt::format("{:.6g}", at->second));
    n += 1.0;
    x += std::log(at->second);
    y += std::log(row.measured);
    least = std::min(least, at->second);
    most = std::max(most, at->second);
  }
  panel.blocks = {data};
  panel.commands = fmt::format(
      "  set logscale xy\n  set grid xtics\n  set xtics ({})\n  set xlabel {} textcolor rgb ink\n"
      "  set ylabel {} textcolor rgb ink\n  set xrange [{:.6g}:{:.6g}]\n"
      "  set key left top Left reverse textcolor rgb ink\n"
      "  plot data index first using 1:2:3 with yerrorbars lc rgb colour_of(1) lw 2 pt 7 ps 0.7 "
      "title 'measured, mean and spread of the runs'",
      fmt::join(tics, ", "), plot_name(input.plot.x_label.empty() ? "x" : input.plot.x_label),
      plot_name(metric_of(input.rows, fit.metric).label), least / 1.2, most * 1.2);
  const ResultRow* const found = exponent_of(input, fit);
  const auto add = [&](double exponent, const char* whose, int colour) {
    const PowerLaw law{exponent, std::exp(x / n), std::exp(y / n)};
    panel.commands +=
        fmt::format(", \\\n    {} with lines lc rgb colour_of({}) lw 1.5 dt {} title '{} {:.2f}'",
                    law.formula(), colour, colour, whose, exponent);
  };
  if (found != nullptr) add(found->measured, "fitted exponent", 1);
  if (found != nullptr && found->paper) add(*found->paper, "the paper''s exponent", 2);
  panel.commands += "\n  unset logscale\n  set xtics autofreq\n";
  return panel;
}

}  // namespace

Figure power_plot(const PlotInput& input) {
  std::vector<Panel> panels;
  for (const FitConfig& fit : input.fits) {
    const auto& shown = input.plot.metrics;
    if (std::find(shown.begin(), shown.end(), fit.metric) == shown.end()) continue;
    panels.push_back(fit_panel(input, fit));
  }
  if (panels.empty()) fail_usage("a plot of kind 'power' shows the metric of a fit");
  return panel_figure(input.stem, panels, {.columns = 2, .width = 520, .height = 360, .left = 110});
}

}  // namespace moesaic
