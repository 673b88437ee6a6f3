// SPDX-License-Identifier: Apache-2.0
// How well classes are told apart by a linear map of a network's features that has learned from few
// images of each class: google-research/vmoe's few-shot evaluation (vmoe/evaluate/fewshot.py).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "moesaic/train/evaluate.h"

namespace moesaic {

/// Ridge regression of y = +1 for an image's class and -1 for the others on features that are
/// standardized, (x - mean) / (std + 1e-5), beside a constant feature of 100, a bias that hardly
/// any l2 holds back: W = (X^T X + l2 I)^-1 X^T Y = X^T (X X^T + l2 I)^-1 Y. One eigendecomposition
/// of the smaller matrix, in float64, serves every l2.
class RidgeProbe {
 public:
  /// Learns from features x_ND of any floating type and classes labels_N int64.
  RidgeProbe(const at::Tensor& x_ND, const at::Tensor& labels_N, int64_t num_classes);

  /// Returns the class of the largest score of each row of x_ND, [N] int64.
  at::Tensor predict(const at::Tensor& x_ND, double l2) const;

 private:
  at::Tensor inputs_of(const at::Tensor& x_ND) const;

  at::Tensor mean_, std_;
  at::Tensor eigenvalues_, left_, right_;  ///< W = left diag(1 / (eigenvalues + l2)) right.
};

/// Options of few_shot().
struct FewShotOptions {
  std::vector<int64_t> shots;  ///< Training images of each class; each number is a row.
  std::vector<double> l2;      ///< Strengths to choose from; empty: 2^-10 to 2^19.
  int64_t num_seeds = 3;       ///< Choices of the training images.
};

/// Accuracy in % after `shots` images of each class, by seed, with the l2 of the largest mean: like
/// the reference's, it is chosen by the images that are evaluated.
struct FewShotAccuracy {
  int64_t shots = 0;
  double l2 = 0.0;
  std::vector<double> accuracy;
};

/// Learns from images of `train`, a seed's fewer shots being the first of its more, and measures on
/// `test`. Features are pre_logits, of an ensemble those of all members in a row. Memory holds the
/// features of `test` and of one seed's images. Returns nothing where options.on_progress ended it.
/// Throws Error (usage) for data without classes, and for more shots than a class has images.
std::vector<FewShotAccuracy> few_shot(Model& model, const std::shared_ptr<const Dataset>& train,
                                      const std::shared_ptr<const Dataset>& test,
                                      const FewShotOptions& few, const EvaluateOptions& options);

/// Result of probe_checkpoint().
struct CheckpointProbe {
  fs::path checkpoint;
  std::string data, split;
  int64_t images = 0;
  std::vector<FewShotAccuracy> rows;  ///< Empty where it was stopped.
};

/// Measures a checkpoint by few_shot() on a split of data, after training on images of its split
/// "train". The data's classes need not be the network's. Throws Error (usage) as
/// evaluate_checkpoint() does, and for the split "train".
CheckpointProbe probe_checkpoint(const EvaluateCheckpointOptions& options,
                                 const FewShotOptions& few);

/// Returns {"checkpoint", "data", "split", "images", "few_shot": [{"shots", "l2", "accuracy" (the
/// mean), "values" (by seed)}, ...]}.
Json to_json(const CheckpointProbe& probe);
/// Returns the same as plain text.
std::string to_text(const CheckpointProbe& probe);

}  // namespace moesaic
