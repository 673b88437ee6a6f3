// SPDX-License-Identifier: Apache-2.0
// The two steps of a softmax whose order decides its bits. On the CPU they are those of
// route_math.h, with which the kernels of token choice weigh as well; elsewhere they are
// LibTorch's.
#pragma once

#include <ATen/core/Tensor.h>

namespace moesaic::ops {

/// Returns exp(x) for x <= 0.
at::Tensor softmax_exp(const at::Tensor& x);
/// Returns sums over the last dimension, which keeps size 1; the CPU adds in its order.
at::Tensor sum_in_order(const at::Tensor& x);

}  // namespace moesaic::ops
