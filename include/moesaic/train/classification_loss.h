// SPDX-License-Identifier: Apache-2.0
// Losses of logits and labels, in training and in evaluation.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "moesaic/base/registry.h"

namespace moesaic {

/// Targets of rows of logits.
struct Targets {
  at::Tensor labels;       ///< Classes [B] int64.
  at::Tensor soft_labels;  ///< Used in place of labels where defined, [B, classes] float32.
  double smoothing = 0.0;  ///< Label smoothing s: targets are (1 - s) t + s / classes.
};

/// A loss, defined in a file of its own in src/train/losses/. All tensors are float32.
struct ClassificationLoss {
  std::string meaning;  ///< Description for lists of objectives.
  /// Returns the loss of each row, [R], for logits_RC and targets of as many rows.
  at::Tensor (*of_rows)(const at::Tensor& logits_RC, const Targets& targets);
  /// Returns log p of each class, along the last dimension.
  at::Tensor (*log_probabilities)(const at::Tensor& logits);
  /// Returns the loss of each image, [B], where p is the mean over the members of an ensemble, for
  /// logits_BMC and targets_BC.
  at::Tensor (*of_mean)(const at::Tensor& logits_BMC, const at::Tensor& targets_BC);
  /// Whether the loss takes one row of logits per image and member of an ensemble.
  bool of_ensemble = false;
  /// Name of the same loss for an ensemble, or for a single network where this one is of ensembles.
  std::string counterpart;
};

/// Returns softmax, sigmoid, softmax_twice, ensemble_softmax and ensemble_sigmoid.
Registry<ClassificationLoss>& classification_losses();

/// Returns the training loss of each row of logits [B members, classes], an image's members in a
/// row, each with the image's targets t:
///
///     softmax:  -sum_c t_c log softmax(logits)_c
///     softmax_twice:  softmax with softmax(logits) in place of logits (clusters paper's released
///                     code), so that two classes cost at least 0.3133
///     sigmoid:  -sum_c t_c log sigmoid(logit_c) + (1 - t_c) log sigmoid(-logit_c)
///
/// The result is [B members] float32. Throws Error (usage) for another name, and for several rows
/// per image where the loss is not of ensembles.
at::Tensor training_losses(const std::string& name, const at::Tensor& logits,
                           const Targets& targets);

/// Returns the loss of each image in evaluation, [B] float32. For an ensemble_* loss the mean
/// probabilities of the members replace softmax(logits), or sigmoid(logit) and sigmoid(-logit).
at::Tensor evaluation_losses(const std::string& name, const at::Tensor& logits,
                             const Targets& targets);

/// Returns the log of the mean over `members` of softmax(logits) [B members, classes], or of
/// sigmoid(logits) for a sigmoid loss: [B, classes] float32.
at::Tensor log_mean_probabilities(const std::string& name, const at::Tensor& logits,
                                  int64_t members);

}  // namespace moesaic
