// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>

namespace moesaic {

/// A figure as a gnuplot script and the data that it reads from STEM.tsv. The script draws STEM.svg
/// and STEM.png in the current folder.
struct Figure {
  std::string script, data;
};

/// Writes STEM.gp, STEM.tsv, STEM.svg and STEM.png to `folder`. Throws Error if gnuplot is missing
/// or fails; script and data are written first, so that they can be drawn later.
void draw_figure(const std::filesystem::path& folder, const Figure& figure,
                 const std::string& stem = "figure");

/// Draws a single file, STEM.png or STEM.svg, with its script and data in STEM.gp and STEM.tsv
/// beside it. Throws as draw_figure() does.
void draw_figure_file(const std::filesystem::path& file, const Figure& figure);

/// Return the paths of script and data of such a figure.
std::filesystem::path script_beside(const std::filesystem::path& file);
std::filesystem::path data_beside(const std::filesystem::path& file);

/// Returns the text as a gnuplot string in single quotes.
std::string gnuplot_quoted(const std::string& text);

}  // namespace moesaic
