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

/// Puts STEM.gp, STEM.tsv, STEM.svg and STEM.png into `folder`. Script and data are written first,
/// so they are there to be drawn later where gnuplot is missing or fails, which is an Error.
void draw_figure(const std::filesystem::path& folder, const Figure& figure,
                 const std::string& stem = "figure");

/// The same of a single file STEM.png or STEM.svg: its script reads STEM.tsv and draws it, and
/// STEM.gp and STEM.tsv stay beside it.
void draw_figure_file(const std::filesystem::path& file, const Figure& figure);

/// Script and data of such a figure.
std::filesystem::path script_beside(const std::filesystem::path& file);
std::filesystem::path data_beside(const std::filesystem::path& file);

/// The text as gnuplot takes it in single quotes, quotes included.
std::string gnuplot_quoted(const std::string& text);

}  // namespace moesaic
