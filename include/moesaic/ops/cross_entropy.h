// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

namespace moesaic {

/// Computes the cross entropy of each row with the class that its label names: -log
/// softmax(logits)[label]. `twice` applies softmax to the probabilities again, -log
/// softmax(softmax(logits))[label], as the released code of the clusters paper does: the loss of
/// two classes lies between 0.3133 and 1.3133.
///
/// logits_NC: [N, C] of any floating type, computed in at least float32, labels_N: [N] int64 from 0
/// to C - 1. Returns [N], NaN where a logit is NaN or none is finite. Differentiable in the logits.
/// Throws Error for other shapes and dtypes, and ATen's error for other labels.
at::Tensor cross_entropy(const at::Tensor& logits_NC, const at::Tensor& labels_N,
                         bool twice = false);

}  // namespace moesaic
