// SPDX-License-Identifier: Apache-2.0
// Shared parts of gnuplot scripts: a style, and panels in a grid.
#pragma once

#include <algorithm>

#include "moesaic/report/figure.h"
#include "moesaic/report/results.h"

namespace moesaic {

/// A panel: its gnuplot commands, what is plotted after them, and the data blocks that the plots
/// read: block i is `index first + i`, where `first` is a gnuplot variable that is set before.
struct Panel {
  std::string commands;
  std::vector<std::string> plots = {}, blocks = {};

  /// Adds a block and a plot of it, such as "using 1:2 with lines".
  void plot(std::string data, const std::string& how);
  /// Adds another plot of the last block.
  void plot_again(const std::string& how);
};

/// A table of numbers as coloured boxes beside a scale, on which 0 is white. Nothing is drawn for
/// numbers that are not finite.
struct HeatMap {
  std::string title, x_label, y_label;  ///< Labels may be empty.
  const MeasuredTable& table;
  int digits = 0;
  int width = 0;              ///< Pixels of the panel, in which the title is wrapped; 0: one line.
  bool shows_numbers = true;  ///< In the boxes, where many do not fit.
  bool names_every_row = true;    ///< False where a row is lower than a line.
  bool uses_sqrt_colors = false;  ///< Colours follow square roots, so that few are seen, too.
};
Panel heatmap_panel(const HeatMap& map);
/// Returns the pixels for the scale at the right of a heat map: gnuplot places it 2.5 % of the
/// map's width beside it and makes it 5 % wide, which its numbers follow.
constexpr int scale_room(int width) {
  return std::max(100, 3 * width / 40 + 65);
}

/// Sizes in pixels of the SVG.
struct PanelGrid {
  int columns = 1;
  int width = 420, height = 300;  ///< Size of a panel including its gap.
  int left = 95, right = 25, top = 50, bottom = 75;
  int gap_x = 95, gap_y = 100;
  bool fits_margins = false;  ///< One panel, in which its key and labels have the room they need.
};

/// Returns a figure of STEM.svg and STEM.png, whose script and data are STEM.gp and STEM.tsv.
/// Scripts have one style; the colours of Okabe and Ito are distinguishable for colour-blind
/// readers. Series i, from 1, has colour_of(i) and dash_of(i), text is `ink`.
Figure panel_figure(const std::string& stem, const std::vector<Panel>& panels,
                    const PanelGrid& grid);

/// Returns a panel that says that no run has what it would show.
Panel panel_of_nothing();

/// Returns the commands that define within(y), which keeps the end of an error bar in the range of
/// the metric.
std::string range_commands(const Metric& metric);

/// Returns a name in single quotes, in which gnuplot sees no markup; '_' becomes a space.
std::string plot_name(const std::string& name);

/// Returns "[min:max]" with a margin around the values, even if all are equal; "[*:*]" for none.
std::string padded_range(const std::vector<double>& values);

/// Returns the commands that label an axis, "x" or "y"; none for an empty label.
std::string axis_label(const char* axis, const std::string& label);

/// Returns tics at 0, 1, ... with these names, "('a' 0, 'b' 1)", or of every `step`-th alone.
std::string named_tics(const std::vector<std::string>& names, size_t step = 1);

}  // namespace moesaic
