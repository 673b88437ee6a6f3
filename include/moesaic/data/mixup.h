// SPDX-License-Identifier: Apache-2.0
// mixup (Zhang, Cisse, Dauphin and Lopez-Paz, arXiv:1710.09412), as V-MoE does it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "moesaic/base/random.h"

namespace moesaic {

/// Draws the weight of the image itself, max(w, 1 - w) with w from Beta(a, a),
/// a = `concentration` > 0.
double mixup_weight(double concentration, CounterRng& rng);

/// Mixes each image with the next one of the batch, the last one with the first, in place:
/// x_i = w x_i + (1 - w) x_{i+1} with w = `weight`. `images` is [B, ...] float32, contiguous, on
/// any device.
void mix_with_next(at::Tensor& images, double weight);

/// Returns the targets of a mixed batch, [B, classes] float32: w onehot(y_i) +
/// (1 - w) onehot(y_{i+1}) for `labels` y [B] int64.
at::Tensor mixed_labels(const at::Tensor& labels, int64_t classes, double weight);

/// Does the same for images that are mixed with those of the labels `next` [B].
at::Tensor mixed_labels(const at::Tensor& labels, const at::Tensor& next, int64_t classes,
                        double weight);

}  // namespace moesaic
