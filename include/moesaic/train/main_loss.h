// SPDX-License-Identifier: Apache-2.0
// What logits are compared with labels by.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace moesaic {

/// softmax, sigmoid, softmax_twice, ensemble_softmax, ensemble_sigmoid.
std::vector<std::string> main_loss_names();

/// Does the loss take the rows of an ensemble? The others want one row an image.
bool is_ensemble_loss(const std::string& name);
/// The same loss for an ensemble, and for one network.
std::string with_members(const std::string& name);
std::string of_one_network(const std::string& name);

/// What rows of logits are compared with.
struct Targets {
  at::Tensor labels;       ///< [B] int64
  at::Tensor soft_labels;  ///< [B, classes] float32 in place of labels, where it is defined
  double smoothing = 0.0;  ///< s: targets are (1 - s) t + s / classes
};

/// The loss of each row in training, logits [B members, classes], an image's members in a row, each
/// compared with the image's targets t:
///
///     softmax:  -sum_c t_c log softmax(logits)_c
///     softmax_twice:  the same of softmax(logits) in place of logits (clusters paper's released
///                     code), so that two classes cost at least 0.3133
///     sigmoid:  -sum_c t_c log sigmoid(logit_c) + (1 - t_c) log sigmoid(-logit_c)
///
/// Returns [B members] float32. Throws Error (usage) for another name.
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
