// SPDX-License-Identifier: Apache-2.0
// The losses of this folder and their shared functions.
#pragma once

#include "moesaic/train/classification_loss.h"

namespace moesaic {

ClassificationLoss softmax_loss();
ClassificationLoss softmax_twice_loss();
ClassificationLoss sigmoid_loss();

/// Returns smoothed targets, [B, classes] float32.
at::Tensor dense_targets(const Targets& targets, int64_t classes);

/// Returns the log of the mean over members of exp(log_BMC), [B, classes].
at::Tensor log_mean_exp(const at::Tensor& log_BMC);

}  // namespace moesaic
