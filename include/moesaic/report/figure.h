// SPDX-License-Identifier: Apache-2.0
// Figures that gnuplot draws, those of runs, and the report of a run.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "moesaic/base/filesystem.h"
#include "moesaic/config/value.h"

namespace moesaic {

/// A figure as a gnuplot script and the data that it reads from STEM.tsv. The script draws STEM.svg
/// and STEM.png in the current folder.
struct Figure {
  std::string script, data;
};

/// Throws Error if nothing can be written in `folder`.
void check_can_write(const fs::path& folder);

/// Throws Error unless gnuplot is there and can write in `folder`.
void check_can_draw(const fs::path& folder);

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

/// Returns the objects among the lines of a metrics.jsonl; incomplete ones are left out.
std::vector<Json> metrics_lines(std::string_view metrics);

/// Returns the lines of a run's metrics.jsonl. Throws Error (usage) where the folder has none.
std::string read_metrics(const fs::path& run);

/// Plots loss and accuracy of a run over its steps, from the lines of its metrics.jsonl: a curve
/// for training and each split on each dataset. Curves break at phase ends, which vertical lines
/// with the phases' names mark. Throws Error where there is neither.
Figure run_curve(std::string_view metrics, const std::string& stem = "figure");

/// A run by a name for its curves, with the lines of its metrics.jsonl.
struct RunMetrics {
  std::string name, lines;
};

/// Plots those of loss and accuracy that all runs have, over their steps, a colour for each run.
/// Throws Error (usage) where they have neither in common.
Figure run_comparison(const std::vector<RunMetrics>& runs, const std::string& stem);

/// Plots one of kExpertMetrics of each expert over the steps of training, or else of evaluations,
/// as a heat map for each MoE layer. Throws Error (usage) where no line has it.
Figure expert_figure(std::string_view metrics, const std::string& metric, const std::string& stem);

/// Draws run_curve() into the run's folder, see draw_figure(). Throws as read_metrics() and
/// run_curve() do, and Error if gnuplot is missing.
void draw_run_curve(const fs::path& run);

/// Returns Markdown on a run's folder: the phases of its recipe, the last evaluation of each phase
/// on each split, the use of experts in the last one, the curves, and further commands of
/// `program`, this one's name. Throws Error (usage) where the folder is no run.
std::string run_report(const fs::path& run, const std::string& program = "moesaic");

}  // namespace moesaic
