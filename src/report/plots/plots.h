// SPDX-License-Identifier: Apache-2.0
// The plots of an experiment's runs, each in a file of its own.
#pragma once

#include <string>
#include <vector>

#include "moesaic/report/figure.h"
#include "moesaic/report/runs.h"

namespace moesaic {

/// Inputs of a figure.
struct PlotInput {
  const PlotConfig& plot;
  const std::vector<MeasuredRow>& rows;
  const std::vector<ResultRow>& results;
  std::string stem;  ///< of its files
};

/// Each metric's rows from top to bottom with their standard deviations, beside the paper's.
Figure points_plot(const PlotInput& input);

/// Snapshots over updates. Of a number a line for each row, the mean over its runs, in a band of
/// their standard deviation; of a table a panel for each row, in which every entry of its first
/// run is a line, coloured by its column.
Figure curves_plot(const PlotInput& input);

/// Tables at the end of each row's first run.
Figure heatmap_plot(const PlotInput& input);

/// Every run as a point, by two metrics, coloured by row.
Figure scatter_plot(const PlotInput& input);

}  // namespace moesaic
