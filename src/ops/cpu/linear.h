// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <tuple>

namespace moesaic::ops {

/// x_Rd W_od^T + b_o, float32 or float64, contiguous.
at::Tensor linear_cpu(const at::Tensor& x_Rd, const at::Tensor& weight_od, const at::Tensor& b_o);

/// Gradients of x [R, d] and W [o, d] from that of the output [R, o].
std::tuple<at::Tensor, at::Tensor> linear_backward_cpu(const at::Tensor& grad_Ro,
                                                       const at::Tensor& x_Rd,
                                                       const at::Tensor& weight_od);

}  // namespace moesaic::ops
