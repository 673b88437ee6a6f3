// SPDX-License-Identifier: Apache-2.0
// What an experiment of runs has to tell: tables and figures.
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

/// report.md.
std::string runs_markdown(const Experiment& experiment, const RunsConfig& config,
                          const std::vector<MeasuredRow>& rows, const Results& results);

/// The same in short, for a terminal; `out` is where the files are.
std::string runs_summary(const Experiment& experiment, const RunsConfig& config,
                         const std::vector<MeasuredRow>& rows, const Results& results,
                         const std::filesystem::path& out);

/// One for each plot of the experiment, in order.
std::vector<Figure> runs_figures(const RunsConfig& config, const std::vector<MeasuredRow>& rows,
                                 const Results& results);

/// "figure", "figure-2", ...
std::string figure_stem(size_t index);

}  // namespace moesaic
