// SPDX-License-Identifier: Apache-2.0
// Bias and activation over a panel of rows, in one pass while the panel is hot in cache.
#pragma once

#include <cstdint>

#include "moesaic/ops/grouped_mlp.h"

namespace moesaic::ops {

/// hidden[r, j] += bias[j]; out[r, j] = act(hidden[r, j]). `out` may be `hidden` where the input is
/// not needed again.
template <class Scalar>
void bias_activation(Activation activation, Scalar* hidden, const Scalar* bias, Scalar* out,
                     int64_t rows, int64_t width);

/// grad[i] *= act'(hidden[i]) and out[i] = act(hidden[i]).
template <class Scalar>
void activation_backward(Activation activation, const Scalar* hidden, Scalar* grad, Scalar* out,
                         int64_t count);

}  // namespace moesaic::ops
