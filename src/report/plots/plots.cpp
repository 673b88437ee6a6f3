// SPDX-License-Identifier: Apache-2.0
#include "plots.h"

namespace moesaic {

Figure draw_plot(const PlotInput& input) {
  if (input.plot.kind == "points") return points_plot(input);
  if (input.plot.kind == "curves") return curves_plot(input);
  return input.plot.kind == "heatmap" ? heatmap_plot(input) : scatter_plot(input);
}

}  // namespace moesaic
