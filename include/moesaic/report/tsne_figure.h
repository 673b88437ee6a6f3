// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <functional>

#include "moesaic/report/evaluation_points.h"
#include "moesaic/report/figure.h"

namespace moesaic {

/// Throws Error (usage) unless `file` ends in .png or .svg, and neither it nor the script and
/// data beside it are there.
void check_new_figure(const std::filesystem::path& file, const std::string& what);

/// Values on a square grid that covers the points y_N2 [N, 2] float64 and some room around them.
struct PlaneGrid {
  at::Tensor x_G, y_G;  ///< float64
  at::Tensor value_GG;  ///< [row of y, column of x] float64
};

/// At each node the mean of value_N [N] over the points, weighted by exp(-|node - point|^2 / 2 h^2)
/// with h the distance between neighbours were the points spread evenly over their rectangle; far
/// from all of them the value of the nearest.
PlaneGrid plane_average(const at::Tensor& y_N2, const at::Tensor& value_N, int64_t nodes);

/// The points at y_N2 [N, 2], coloured as they say, with a marker for the label where there are two
/// classes. With `boundary`, the lines on which the averaged prediction is half the one class and
/// half the other (plane_average()); where there are none, because all predictions agree, nothing
/// is drawn. Script and data are named after `file`.
Figure tsne_figure(const EvaluationPoints& points, const at::Tensor& y_N2, bool boundary,
                   const std::filesystem::path& file);

/// t-SNE of the points with a perplexity of 30, or a third of the points where they are fewer than
/// 91, drawn as `file` with script and data beside it (draw_figure_file()). `proceed` is
/// TsneOptions'; where it says false nothing is written. Returns whether it was drawn.
bool draw_tsne(const EvaluationPoints& points, bool boundary, const std::filesystem::path& file,
               const std::function<bool(int64_t done, int64_t total)>& proceed);

}  // namespace moesaic
