// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>

#include "moesaic/train/classification_loss.h"
#include "moesaic/train/task.h"

namespace moesaic {

/// Metrics of the members of an ensemble and of their mean. A negative log-likelihood is that of
/// the true class, the mean over images.
struct EnsembleMetrics {
  int64_t members = 0;
  double negative_log_likelihood = 0.0;         ///< Of the members' mean probability.
  double member_negative_log_likelihood = 0.0;  ///< Mean over the members.
  double member_accuracy = 0.0;                 ///< Mean over the members, in %.
  double disagreement = 0.0;  ///< Fraction of pairs of members with different predictions.
};

/// Quality of predictions. An image's probabilities are softmax(logits), or sigmoid(logits) for a
/// sigmoid loss, and for an ensemble the mean over its members; the predicted class is the most
/// probable one, on ties the one with the lower index.
struct ClassificationMetrics {
  int64_t images = 0;
  double accuracy = 0.0;  ///< Top-1 accuracy in %.
  /// Top-5 accuracy in %; none of at most five classes, where it is 100 for any network.
  std::optional<double> top5_accuracy;
  double loss = 0.0;  ///< Mean of evaluation_losses().
  /// Expected calibration error (Guo et al., arXiv:1706.04599): over 15 bins of equal width of the
  /// predicted class's probability p in (0, 1], the sum of (fraction of the images in the bin) *
  /// |accuracy in it - mean p in it|, from 0 to 1.
  double calibration_error = 0.0;
  std::optional<EnsembleMetrics> ensemble;
};

inline constexpr int64_t kCalibrationBins = 15;

/// Measures predictions batch by batch, with sums in float64.
class ClassificationMeter {
 public:
  explicit ClassificationMeter(std::string loss) : loss_(std::move(loss)) {}

  /// Adds logits [B members, classes], an image's members in a row, with labels [B] int64.
  void add(const at::Tensor& logits, const at::Tensor& labels);
  /// Returns the metrics of all images so far, at least one.
  ClassificationMetrics result() const;
  const Confusion& confusion() const { return confusion_; }

 private:
  void add_members(const at::Tensor& logits, const at::Tensor& labels);
  void add_calibration(const at::Tensor& confidence, const at::Tensor& hits);

  std::string loss_;
  Confusion confusion_;
  int64_t images_ = 0, members_ = 1, classes_ = 0;
  double correct_ = 0.0, top5_ = 0.0, losses_ = 0.0;
  at::Tensor bins_;  ///< [3, bins] float64: images, hits, sum of probabilities.
  double likelihood_ = 0.0, member_likelihood_ = 0.0, member_correct_ = 0.0, pairs_apart_ = 0.0;
};

inline constexpr int64_t kTop = 5;  ///< Classes that count as a hit of the top-5 accuracy.

/// Returns the metrics by name: "accuracy", "loss", "calibration_error", of more than five classes
/// "top5_accuracy" and, for an ensemble, "ensemble.members", "ensemble.negative_log_likelihood",
/// ...
Metrics named(const ClassificationMetrics& metrics);

}  // namespace moesaic
