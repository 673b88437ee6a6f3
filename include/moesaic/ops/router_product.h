// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

namespace moesaic {

/// Computes the logits of a linear router, x W^T, differentiable in both. On a CPU, few experts
/// over tokens of a small width, for which BLAS is slow, have a kernel of their own, whose results
/// do not depend on the number of threads; everything else is ATen's.
///
/// x_Td: [T, d], weight_Ed: [E, d], of one floating type. Returns [T, E].
at::Tensor router_product(const at::Tensor& x_Td, const at::Tensor& weight_Ed);

}  // namespace moesaic
