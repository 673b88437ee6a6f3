// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <functional>

#include "moesaic/report/evaluation_points.h"
#include "moesaic/report/figure.h"

namespace moesaic {

/// Throws Error (usage) unless `file` ends in .png or .svg, and neither it nor its script and data
/// exist; Error (failure) if it could not be drawn (check_can_draw()).
void check_new_figure(const std::filesystem::path& file, const std::string& what);

/// Values on a square grid that covers the points y_N2 [N, 2] float64 with a margin.
struct PlaneGrid {
  at::Tensor x_G, y_G;  ///< Coordinates of the nodes, float64.
  at::Tensor value_GG;  ///< Values [row of y, column of x] float64.
};

/// Returns at each node the mean of value_N [N] over the points, weighted by
/// exp(-|node - point|^2 / 2 h^2), with h the spacing of as many points on a regular grid over
/// their rectangle; far from all points the value of the nearest.
PlaneGrid plane_average(const at::Tensor& y_N2, const at::Tensor& value_N, int64_t nodes);

/// Returns a figure of the points at y_N2 [N, 2], colored by points.color, with a marker for the
/// label where there are two classes. With `boundary` it has the lines where the averaged
/// prediction (plane_average()) is half of each class, if predictions differ. Script and data are
/// named after `file`.
Figure tsne_figure(const EvaluationPoints& points, const at::Tensor& y_N2, bool boundary,
                   const std::filesystem::path& file);

/// Draws t-SNE of the points with a perplexity of 30, or a third of the points for fewer than 91,
/// as `file` with script and data beside it (draw_figure_file()). `proceed` is that of TsneOptions;
/// if it returns false nothing is written. Returns whether the figure was drawn.
bool draw_tsne(const EvaluationPoints& points, bool boundary, const std::filesystem::path& file,
               const std::function<bool(int64_t done, int64_t total)>& proceed);

}  // namespace moesaic
