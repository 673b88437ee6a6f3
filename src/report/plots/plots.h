// SPDX-License-Identifier: Apache-2.0
// Plots of an experiment's runs, one file each.
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
  std::string stem;  ///< Stem of the file names.
  std::vector<FitConfig> fits = {};
};

/// Returns a plot of the rows of each metric with standard deviations, beside the paper's values.
Figure points_plot(const PlotInput& input);

/// Returns a plot of snapshots over updates. A number has a line for each row, the mean over its
/// runs, in a band of their standard deviation; a table has a panel for each row, in which every
/// entry of its first run is a line, coloured by its column.
Figure curves_plot(const PlotInput& input);

/// Returns a plot of the tables at the end of each row's first run.
Figure heatmap_plot(const PlotInput& input);

/// Returns a plot of each metric over a size: a line for each curve, with standard deviations.
Figure lines_plot(const PlotInput& input);

/// Returns a heat map of each metric's means: curves by sizes.
Figure map_plot(const PlotInput& input);

/// Returns a plot with every run as a point by two metrics, coloured by row.
Figure scatter_plot(const PlotInput& input);

/// Returns a plot of the fits of its metrics over x, both logarithmic, with the power laws of the
/// fitted exponent and of the paper's.
Figure power_plot(const PlotInput& input);

}  // namespace moesaic
