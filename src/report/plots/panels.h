// SPDX-License-Identifier: Apache-2.0
// Shared parts of gnuplot scripts: a style, and panels in a grid.
#pragma once

#include <string>
#include <vector>

#include "moesaic/report/figure.h"
#include "moesaic/report/measurement.h"

namespace moesaic {

/// Returns the head of a script that draws STEM.svg and STEM.png from STEM.tsv, which is `data`:
/// the style of all figures. The colours of Okabe and Ito are distinguishable for colour-blind
/// readers; series i, from 1, has colour_of(i) and dash_of(i).
std::string script_head(const std::string& stem);
/// Returns the beginning of a gnuplot loop over both files; the SVG is `width` x `height` pixels.
std::string for_both_files(int width, int height);

/// The gnuplot commands of a panel, up to its plot, and the data blocks that they read: block i of
/// `blocks` is `index FIRST + i`, where FIRST is a gnuplot variable that is set before.
struct Panel {
  std::string commands;
  std::vector<std::string> blocks;
};

/// A table of numbers as coloured boxes.
struct HeatMap {
  std::string title, x_label, y_label;  ///< Labels may be empty.
  const MeasuredTable& table;
  int digits = 0;
  int width = 0;  ///< Pixels of the panel, in which the title is wrapped; 0: it is one line.
  bool numbers = true, names = true;  ///< Shown in the boxes and on the axes; many do not fit.
  bool root_colors = false;           ///< Colours follow square roots, so that few are seen, too.
};
Panel heatmap_panel(const HeatMap& map);

/// Sizes in pixels of the SVG.
struct PanelGrid {
  int columns = 1;
  int width = 420, height = 300;  ///< Size of a panel including its gap.
  int left = 95, right = 25, top = 50, bottom = 75;
  int gap_x = 95, gap_y = 100;
};

/// Returns a figure of STEM.svg and STEM.png.
Figure panel_figure(const std::string& stem, const std::vector<Panel>& panels,
                    const PanelGrid& grid);

/// Returns a panel that says that no run has what it would show.
Panel panel_of_nothing();

/// Returns a name in single quotes; '_', which starts a subscript, becomes a space.
std::string plot_name(std::string name);

/// Returns "[min:max]" with a margin around the values, even if all are equal; "[*:*]" for none.
std::string padded_range(const std::vector<double>& values);

/// Returns tics at 0, 1, ... with these names, "('a' 0, 'b' 1)", or of every `step`-th alone.
std::string named_tics(const std::vector<std::string>& names, size_t step = 1);

}  // namespace moesaic
