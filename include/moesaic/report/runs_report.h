// SPDX-License-Identifier: Apache-2.0
// Tables and figures of the experiment "runs".
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <vector>

#include "moesaic/report/experiment.h"
#include "moesaic/report/figure.h"
#include "moesaic/report/results.h"
#include "moesaic/report/runs.h"

namespace moesaic {

/// Returns the text of report.md.
std::string runs_markdown(const Experiment& experiment, const RunsConfig& config,
                          const std::vector<MeasuredRow>& rows, const Results& results);

/// Returns a summary for a terminal; `out` is the folder of the files.
std::string runs_summary(const Experiment& experiment, const RunsConfig& config,
                         const std::vector<MeasuredRow>& rows, const Results& results,
                         const std::filesystem::path& out);

/// Returns one figure for each plot of the experiment, in order.
std::vector<Figure> runs_figures(const RunsConfig& config, const std::vector<MeasuredRow>& rows,
                                 const Results& results);

/// Returns "figure", "figure-2", ...
std::string figure_stem(size_t index);

}  // namespace moesaic
