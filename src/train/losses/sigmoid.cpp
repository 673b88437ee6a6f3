// SPDX-License-Identifier: Apache-2.0
#include <torch/torch.h>

#include "losses.h"

namespace moesaic {
namespace {

/// log_on and log_off are log p and log (1 - p).
at::Tensor binary_cross_entropy(const at::Tensor& log_on, const at::Tensor& log_off,
                                const at::Tensor& targets) {
  return -(targets * log_on + (1.0 - targets) * log_off).sum(1);
}

at::Tensor sigmoid_of_rows(const at::Tensor& logits_RC, const Targets& targets) {
  return binary_cross_entropy(at::log_sigmoid(logits_RC), at::log_sigmoid(-logits_RC),
                              dense_targets(targets, logits_RC.size(1)));
}

at::Tensor log_sigmoid_probabilities(const at::Tensor& logits) {
  return at::log_sigmoid(logits);
}

at::Tensor sigmoid_of_mean(const at::Tensor& logits_BMC, const at::Tensor& targets_BC) {
  return binary_cross_entropy(log_mean_exp(at::log_sigmoid(logits_BMC)),
                              log_mean_exp(at::log_sigmoid(-logits_BMC)), targets_BC);
}

}  // namespace

ClassificationLoss sigmoid_loss() {
  return {.meaning = "binary cross-entropy of sigmoid(logit), summed over the classes",
          .of_rows = sigmoid_of_rows,
          .log_probabilities = log_sigmoid_probabilities,
          .of_mean = sigmoid_of_mean,
          .counterpart = "ensemble_sigmoid"};
}

}  // namespace moesaic
