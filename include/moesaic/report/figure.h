// SPDX-License-Identifier: Apache-2.0
// Figures that gnuplot draws, and that of a run.
#pragma once

#include <string>
#include <string_view>

#include "moesaic/base/filesystem.h"

namespace moesaic {

/// A figure as a gnuplot script and the data that it reads from STEM.tsv. The script draws STEM.svg
/// and STEM.png in the current folder.
struct Figure {
  std::string script, data;
};

/// Throws Error if nothing can be written in `folder`.
void check_can_write(const fs::path& folder);

/// Throws Error (usage) unless `file` ends in .png or .svg, and neither it nor its script and data
/// exist; Error (failure) if gnuplot is missing or nothing can be written in its folder.
void check_new_figure(const fs::path& file, const std::string& what);

/// Writes STEM.gp, STEM.tsv, STEM.svg and STEM.png to `folder`, all of them whole or none. Throws
/// Error if gnuplot is missing or fails, and if a figure cannot be written to its end.
void draw_figure(const fs::path& folder, const Figure& figure, const std::string& stem = "figure");

/// Draws a single file, STEM.png or STEM.svg, with its script and data in STEM.gp and STEM.tsv
/// beside it. Throws as draw_figure() does.
void draw_figure_file(const fs::path& file, const Figure& figure);

/// Returns the text as a gnuplot string in single quotes.
std::string gnuplot_quoted(const std::string& text);

/// Plots loss and accuracy of a run over its updates, from the lines of its metrics.jsonl: a curve
/// for training and each split on each dataset, broken where a phase ends, which a vertical line
/// with the phases' names marks. An incomplete line is ignored.
Figure run_curve(std::string_view metrics);

/// Draws the plot into the run's folder, see draw_figure(). Throws Error if the folder has no
/// metrics.jsonl, if that has nothing to draw, or if gnuplot is missing.
void draw_run_curve(const fs::path& run);

}  // namespace moesaic
