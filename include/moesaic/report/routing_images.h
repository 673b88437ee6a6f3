// SPDX-License-Identifier: Apache-2.0
// A picture of where each expert looks: the patches that it got, over images.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "moesaic/report/figure.h"
#include "moesaic/train/evaluate.h"

namespace moesaic {

inline constexpr int64_t kMaxRoutingImages = 64;

/// The first images of an evaluation, and their routing in the last MoE layer.
struct RoutedImages {
  std::string title;             ///< The data and the layer.
  at::Tensor pixels_NCHW;        ///< Bytes.
  at::Tensor weight_NPK;         ///< Weight of each patch for each kept expert, 0 where not routed.
  Sides grid;                    ///< P = grid.height * grid.width patches, row by row.
  std::vector<int64_t> experts;  ///< Ids of the kept experts.
};

/// Collects them from the batches of an evaluation. Throws Error (usage), at the first batch, for
/// data that are no images and for a network without a layer that routes patches.
class RoutedImageCollector {
 public:
  explicit RoutedImageCollector(int64_t images) : wanted_(images) {}

  void add(const EvaluatedBatch& batch);
  /// Returns the images, after the last batch.
  RoutedImages images() const;

 private:
  void begin(const EvaluatedBatch& batch);

  int64_t wanted_;
  RoutedImages made_;
  std::vector<at::Tensor> pixels_, weights_;
};

/// Returns a figure with a panel for each expert: all images, dimmed but for the patches that it
/// got, which have a frame.
Figure routing_images_figure(const RoutedImages& images, const std::string& stem);

}  // namespace moesaic
