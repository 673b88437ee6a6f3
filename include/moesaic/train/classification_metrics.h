// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>

#include "moesaic/train/classification_loss.h"
#include "moesaic/train/task.h"

namespace moesaic {

/// How the members of an ensemble differ from one another and from their mean. A negative
/// log-likelihood is that of the true class, the mean over images.
struct EnsembleMetrics {
  int64_t members = 0;
  double negative_log_likelihood = 0.0;         ///< of the members' mean probability
  double member_negative_log_likelihood = 0.0;  ///< the members' mean
  double member_accuracy = 0.0;                 ///< %, the members' mean
  double disagreement = 0.0;  ///< fraction of the pairs of members that predict different classes
};

/// How good predictions are. An image's probabilities are softmax(logits), or sigmoid(logits) where
/// the loss is one of those, and of an ensemble the mean over its members; the class predicted is
/// the most probable one, the lower number of equal ones.
struct ClassificationMetrics {
  int64_t images = 0;
  double accuracy = 0.0;       ///< %
  double top5_accuracy = 0.0;  ///< %, images whose class is among the 5 most probable (or of all)
  double loss = 0.0;           ///< mean of evaluation_losses()
  /// Expected calibration error (Guo et al., arXiv:1706.04599): over 15 bins of equal width of the
  /// predicted class's probability p in (0, 1], the sum of (fraction of the images in the bin) *
  /// |accuracy in it - mean p in it|, from 0 to 1.
  double calibration_error = 0.0;
  std::optional<EnsembleMetrics> ensemble;
};

inline constexpr int64_t kCalibrationBins = 15;

/// Measures predictions batch by batch, sums in float64.
class ClassificationMeter {
 public:
  explicit ClassificationMeter(std::string loss) : loss_(std::move(loss)) {}

  /// logits [B members, classes], an image's members in a row; labels [B] int64.
  void add(const at::Tensor& logits, const at::Tensor& labels);
  /// Of at least one image.
  ClassificationMetrics result() const;

 private:
  void add_members(const at::Tensor& logits, const at::Tensor& labels);
  void add_calibration(const at::Tensor& confidence, const at::Tensor& hits);

  std::string loss_;
  int64_t images_ = 0, members_ = 1;
  double correct_ = 0.0, top5_ = 0.0, losses_ = 0.0;
  at::Tensor bins_;  ///< [3, bins] float64: images, hits, sum of probabilities
  double likelihood_ = 0.0, member_likelihood_ = 0.0, member_correct_ = 0.0, pairs_apart_ = 0.0;
};

/// The same by name: "accuracy", "top5_accuracy", "loss", "calibration_error" and, of an ensemble,
/// "ensemble.members", "ensemble.negative_log_likelihood", ...
Metrics named(const ClassificationMetrics& metrics);

}  // namespace moesaic
