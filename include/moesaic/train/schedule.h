// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "moesaic/train/optimizer_config.h"

namespace moesaic {

/// Returns the learning rate of update i = 0, 1, ..., `steps` - 1 of a phase. With w warm-up
/// updates, peak p and end e (end_lr, or p times the fraction `end`):
///
///     i < w:   p i / w
///     i >= w:  e + (p - e) f(x),  x = (i - w) / (steps - w), at most 1
///
/// where f(x) is (1 + cos(pi x)) / 2 for cosine, 1 - x for linear and 1 for constant. rsqrt is
/// p / sqrt(1 + (i - w) / timescale), and falls linearly to 0 over the cooldown (Zhai et al.,
/// arXiv:2106.04560). A cosine with a period T has x = (i - w) / T without that bound: its rate
/// rises again after T updates. `by_epoch` rounds i down to the first update of its epoch, and T
/// counts epochs. As in V-MoE the first warm-up update has rate 0: it changes the momenta only.
double learning_rate(const ScheduleConfig& schedule, double peak, int64_t update, int64_t steps,
                     int64_t steps_per_epoch = 1);

}  // namespace moesaic
