// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

namespace moesaic {

/// Importance loss of V-MoE: the squared coefficient of variation, over experts, of the sum over
/// tokens of softmax(logits). logits_TE: [T, E]; `group_size` tokens form a group (0: all), the
/// mean over groups is returned as a float32 scalar, differentiable.
at::Tensor importance_loss(const at::Tensor& logits_TE, int64_t group_size);

/// GShard's load-balancing loss: E^2 times the mean over experts of (share of tokens whose best
/// gate is the expert's) * (mean gate of the expert); the share is a constant for the gradient.
/// Shapes as above.
at::Tensor gshard_loss(const at::Tensor& logits_TE, int64_t group_size);

}  // namespace moesaic
