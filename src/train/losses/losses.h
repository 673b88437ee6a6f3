// SPDX-License-Identifier: Apache-2.0
// The losses of this folder and what they have in common.
#pragma once

#include "moesaic/train/classification_loss.h"

namespace moesaic {

ClassificationLoss softmax_loss();
ClassificationLoss softmax_twice_loss();
ClassificationLoss sigmoid_loss();

/// Targets as [B, classes] float32, smoothed.
at::Tensor dense_targets(const Targets& targets, int64_t classes);

/// log of the mean over the members' dimension of exp(log_BMC): [B, classes].
at::Tensor log_mean_exp(const at::Tensor& log_BMC);

}  // namespace moesaic
