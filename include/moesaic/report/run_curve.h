// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string_view>

#include "moesaic/report/figure.h"

namespace moesaic {

/// Plots loss and accuracy of a run over its updates, from the lines of its metrics.jsonl: a curve
/// for training and each split on each data set, broken where a phase ends, which a vertical line
/// with the phases' names marks. An incomplete line is ignored.
Figure run_curve(std::string_view metrics);

/// Draws the plot into the run's folder, see draw_figure(). Throws Error if the folder has no
/// metrics.jsonl, if that has nothing to draw, or if gnuplot is missing.
void draw_run_curve(const std::filesystem::path& run);

}  // namespace moesaic
