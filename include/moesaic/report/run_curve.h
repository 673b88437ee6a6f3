// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string_view>

#include "moesaic/report/figure.h"

namespace moesaic {

/// Loss and accuracy of a run over its updates, in training and on the test split, from the lines
/// of its metrics.jsonl; phases are told apart by vertical lines. A line that is cut short counts
/// as none.
Figure run_curve(std::string_view metrics);

/// Draws it into the run's folder, see draw_figure(). Throws Error where the folder has no
/// metrics.jsonl, where that has nothing to draw, or where gnuplot is missing.
void draw_run_curve(const std::filesystem::path& run);

}  // namespace moesaic
