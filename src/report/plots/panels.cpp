// SPDX-License-Identifier: Apache-2.0
#include "panels.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string_view>

#include "moesaic/base/text.h"

namespace moesaic {
namespace {

constexpr std::string_view kStyle = R"(set datafile separator tab
set encoding utf8
set datafile missing '-'
array color[8] = ['#0072B2', '#D55E00', '#009E73', '#CC79A7', '#E69F00', '#56B4E9', '#999999', \
  '#F0E442']
colour_of(i) = color[1 + (i - 1) % 8]
dash_of(i) = 1 + (i - 1) / 8
ink = '#333333'
set border 3 lc rgb '#666666' lw 0.8
set tics nomirror out scale 0.4 textcolor rgb ink
set grid ytics lt 1 lc rgb '#E2E2E2' lw 0.8
set palette defined (0 '#FFFFFF', 1 '#56B4E9')
set style fill transparent solid 0.2 noborder
svg(width, height) = sprintf("set terminal svg size %d,%d dynamic enhanced \
  font 'Helvetica,Arial,sans-serif,14' background rgb 'white'", width, height)
png(width, height) = sprintf("set terminal pngcairo size %d,%d enhanced \
  font 'DejaVu Sans,20' linewidth 2 pointscale 2 background rgb 'white'", 2 * width, 2 * height)
)";

}  // namespace

std::string script_head(const std::string& stem) {
  return fmt::format(
      "# gnuplot {0}.gp draws {0}.svg and {0}.png from {0}.tsv\nstem = {1}\ndata = {2}\n{3}",
      one_line(stem), gnuplot_quoted(stem), gnuplot_quoted(stem + ".tsv"), kStyle);
}

std::string for_both_files(int width, int height) {
  return fmt::format(
      "do for [ending in 'svg png'] {{\n"
      "  eval (ending eq 'svg' ? svg({0}, {1}) : png({0}, {1}))\n  set output stem.'.'.ending\n",
      width, height);
}

Panel panel_of_nothing() {
  return {
      "  set title 'no run has a value' textcolor rgb ink\n  plot [0:1] [0:1] -1 notitle\n  unset "
      "title\n",
      {}};
}

std::string plot_name(std::string name) {
  std::replace(name.begin(), name.end(), '_', ' ');
  return gnuplot_quoted(name);
}

std::string padded_range(const std::vector<double>& values) {
  if (values.empty()) return "[*:*]";
  const auto [min, max] = std::minmax_element(values.begin(), values.end());
  const double room =
      std::max(0.05 * (*max - *min), *max > *min ? 0.0 : 0.05 * std::abs(*max) + 1e-3);
  return fmt::format("[{:.6g}:{:.6g}]", *min - room, *max + room);
}

std::string named_tics(const std::vector<std::string>& names, size_t step) {
  std::string tics;
  for (size_t i = 0; i < names.size(); i += step) {
    std::string name;  // A tic's label is a format.
    for (const char c : names[i]) name += c == '%' ? std::string("%%") : std::string(1, c);
    tics += fmt::format("{}{} {}", i == 0 ? "" : ", ", plot_name(name), i);
  }
  return "(" + tics + ")";
}

Figure panel_figure(const std::string& stem, const std::vector<Panel>& panels,
                    const PanelGrid& grid) {
  const int count = static_cast<int>(panels.size());
  const int columns = std::min(grid.columns, count), rows = (count + columns - 1) / columns;
  const int width = grid.left + grid.right + columns * grid.width + (columns - 1) * grid.gap_x;
  const int height = grid.top + grid.bottom + rows * grid.height + (rows - 1) * grid.gap_y;
  const auto across = [&](int pixels) { return static_cast<double>(pixels) / width; };
  const auto up = [&](int pixels) { return static_cast<double>(pixels) / height; };
  Figure figure;
  figure.script = script_head(stem) + for_both_files(width, height);
  figure.script += fmt::format(
      "  set multiplot layout {},{} margins screen {:.4f}, screen {:.4f}, screen {:.4f}, "
      "screen {:.4f} \\\n    spacing screen {:.4f}, screen {:.4f}\n",
      rows, columns, across(grid.left), 1.0 - across(grid.right), up(grid.bottom),
      1.0 - up(grid.top), across(grid.gap_x), up(grid.gap_y));
  int first = 0;
  for (const Panel& panel : panels) {
    figure.script += fmt::format("  first = {}\n{}", first, panel.commands);
    for (const std::string& block : panel.blocks) {
      figure.data += (figure.data.empty() ? "" : "\n\n") + block;  // Blank lines end a block.
    }
    first += static_cast<int>(panel.blocks.size());
  }
  figure.script += "  unset multiplot\n}\n";
  return figure;
}

}  // namespace moesaic
