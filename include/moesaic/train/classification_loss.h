// SPDX-License-Identifier: Apache-2.0
// What logits are compared with labels by, in training and in evaluation.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "moesaic/base/registry.h"

namespace moesaic {

/// What rows of logits are compared with.
struct Targets {
  at::Tensor labels;       ///< [B] int64
  at::Tensor soft_labels;  ///< [B, classes] float32 in place of labels, where it is defined
  double smoothing = 0.0;  ///< s: targets are (1 - s) t + s / classes
};

/// One loss; all tensors are float32. A file each in src/train/losses/.
struct ClassificationLoss {
  /// The loss of each row, [R]: logits_RC and as many rows of targets.
  at::Tensor (*of_rows)(const at::Tensor& logits_RC, const Targets& targets);
  /// log p of each class by itself, along the last dimension.
  at::Tensor (*log_probabilities)(const at::Tensor& logits);
  /// The loss of each image, [B], when p is the mean over the members of an ensemble: logits_BMC,
  /// targets_BC.
  at::Tensor (*of_mean)(const at::Tensor& logits_BMC, const at::Tensor& targets_BC);
  /// Whether it takes several rows of logits an image, one for each member of an ensemble.
  bool of_ensemble = false;
  /// The name of the same loss for an ensemble, or of this one for one network.
  std::string counterpart;
};

/// softmax, sigmoid, softmax_twice, ensemble_softmax, ensemble_sigmoid.
Registry<ClassificationLoss>& classification_losses();

/// The loss of each row in training, logits [B members, classes], an image's members in a row, each
/// compared with the image's targets t:
///
///     softmax:  -sum_c t_c log softmax(logits)_c
///     softmax_twice:  the same of softmax(logits) in place of logits (clusters paper's released
///                     code), so that two classes cost at least 0.3133
///     sigmoid:  -sum_c t_c log sigmoid(logit_c) + (1 - t_c) log sigmoid(-logit_c)
///
/// Returns [B members] float32. Throws Error (usage) for another name, and for several rows an
/// image where the loss is not of ensembles.
at::Tensor training_losses(const std::string& name, const at::Tensor& logits,
                           const Targets& targets);

/// The loss of each image in evaluation: [B] float32. For an ensemble_* loss the probabilities'
/// mean over the members takes the place of softmax(logits), or of sigmoid(logit) and
/// sigmoid(-logit).
at::Tensor evaluation_losses(const std::string& name, const at::Tensor& logits,
                             const Targets& targets);

/// log of the mean over `members` of softmax(logits) [B members, classes], or of sigmoid(logits)
/// for a sigmoid loss: [B, classes] float32.
at::Tensor log_mean_probabilities(const std::string& name, const at::Tensor& logits,
                                  int64_t members);

}  // namespace moesaic
