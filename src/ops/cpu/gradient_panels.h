// SPDX-License-Identifier: Apache-2.0
// Gradients of weights: sums over rows, divided among threads by panels of the result.
#pragma once

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "tile.h"

namespace moesaic::ops {

/// One panel of a weight's gradient: left^T right over the rows.
template <class Scalar>
struct GradientPanel {
  const Scalar *left, *right;  // [rows, p], [rows, q]
  Scalar *gradient, *sums;     // [p, q], and the sums over `right`'s rows [q] or null
  int64_t rows, p, q, column;
  Prefetch next;

  int64_t work() const { return (rows + 4) * p; }

  PanelSource<Scalar> source(const TileKernels<Scalar>& kernels) const {
    return {right + column, q, rows, std::min(kernels.columns, q - column), false};
  }

  void compute(const TileKernels<Scalar>& kernels, Scalar* packed) const {
    const PanelSource<Scalar> panel = source(kernels);
    kernels.pack(panel, packed, sums == nullptr ? nullptr : sums + column);
    kernels.multiply({p, rows, panel.columns, left, p, true, packed, nullptr, gradient + column, q,
                      false, true, next});
  }
};

/// Adds all panels of one gradient; `whole.column` and `whole.next` are not looked at.
template <class Scalar>
void add_panels(GradientPanel<Scalar> whole, std::vector<GradientPanel<Scalar>>& panels) {
  for (whole.column = 0; whole.column < whole.q; whole.column += tile_kernels<Scalar>().columns) {
    panels.push_back(whole);
  }
}

/// Computes them in any order. `like` gives the options of scratch memory.
template <class Scalar>
void compute_panels(std::vector<GradientPanel<Scalar>>& panels, const at::Tensor& like) {
  const auto& kernels = tile_kernels<Scalar>();
  int64_t depth = 0, work = 0;
  for (size_t i = 0; i < panels.size(); ++i) {
    if (i + 1 < panels.size()) panels[i].next = panels[i + 1].source(kernels).prefetch();
    depth = std::max(depth, panels[i].rows);
    work += panels[i].work();
  }
  const int64_t parts = at::get_num_threads();
  const at::Tensor scratch =
      at::empty({parts, (depth * kernels.columns + 63) / 64 * 64}, like.options());
  // Part p takes the panels that begin within its part of the work.
  at::parallel_for(0, parts, 1, [&](int64_t first, int64_t last) {
    for (int64_t part = first; part < last; ++part) {
      Scalar* packed = scratch.mutable_data_ptr<Scalar>() + part * scratch.stride(0);
      int64_t done = 0;
      for (const auto& panel : panels) {
        if (done * parts >= work * part && done * parts < work * (part + 1)) {
          panel.compute(kernels, packed);
        }
        done += panel.work();
      }
    }
  });
}

}  // namespace moesaic::ops
