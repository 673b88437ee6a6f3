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

/// Throws Error if gnuplot is missing or nothing can be written in `folder`, for callers that have
/// work to do before they draw.
void check_can_draw(const std::filesystem::path& folder);
/// Throws Error if nothing can be written in `folder`.
void check_can_write(const std::filesystem::path& folder);

/// Writes STEM.gp, STEM.tsv, STEM.svg and STEM.png to `folder`, all of them whole or none. Throws
/// Error if gnuplot is missing or fails, and if a figure cannot be written to its end.
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
