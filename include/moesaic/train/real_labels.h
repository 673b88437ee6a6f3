// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "moesaic/base/filesystem.h"
#include "moesaic/data/dataset.h"
#include "moesaic/train/evaluate.h"

namespace moesaic {

/// The labels of ImageNet-ReaL (Beyer et al., "Are we done with ImageNet?", arXiv:2006.07159), of
/// which an image may have several or none.
class RealLabels {
 public:
  /// Reads real.json: for each image a list of numbers of the data's own classes. The lists are in
  /// the order of the numbers, from 1, that end the names of image files, as in
  /// ILSVRC2012_val_00000001.JPEG, and in the data's order where images are no files. Throws Error
  /// (usage) for another number of lists, no label at all, a class that the data lack, and a file
  /// without a number of its own.
  RealLabels(const fs::path& file, const Dataset& dataset);

  /// Returns "real.accuracy", in % of the "real.images" that have labels: how many were predicted
  /// as one of them. `outputs` names the predicted classes [N], empty: those of the data.
  Metrics measure(const at::Tensor& predicted_N, const std::vector<std::string>& outputs) const;

 private:
  std::vector<std::string> classes_;
  std::vector<std::vector<int64_t>> labels_;  ///< In the data's order.
};

}  // namespace moesaic
