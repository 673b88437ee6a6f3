// SPDX-License-Identifier: Apache-2.0
#include <torch/torch.h>

#include "losses.h"

namespace moesaic {
namespace {

template <bool Twice>
at::Tensor softmax_of_rows(const at::Tensor& logits_RC, const Targets& targets) {
  const at::Tensor& wanted = targets.soft_labels.defined() ? targets.soft_labels : targets.labels;
  return at::cross_entropy_loss(Twice ? logits_RC.softmax(1) : logits_RC, wanted, {},
                                at::Reduction::None, -100, targets.smoothing);
}

at::Tensor log_softmax_probabilities(const at::Tensor& logits) {
  return logits.log_softmax(-1);
}

at::Tensor softmax_of_mean(const at::Tensor& logits_BMC, const at::Tensor& targets_BC) {
  return -(targets_BC * log_mean_exp(log_softmax_probabilities(logits_BMC))).sum(1);
}

}  // namespace

ClassificationLoss softmax_loss() {
  return {.meaning = "cross-entropy of softmax(logits)",
          .of_rows = softmax_of_rows<false>,
          .log_probabilities = log_softmax_probabilities,
          .of_mean = softmax_of_mean,
          .counterpart = "ensemble_softmax"};
}

ClassificationLoss softmax_twice_loss() {
  ClassificationLoss loss = softmax_loss();
  loss.meaning =
      "cross-entropy of softmax(softmax(logits)), as in the clusters paper's released code";
  loss.of_rows = softmax_of_rows<true>;
  return loss;
}

}  // namespace moesaic
