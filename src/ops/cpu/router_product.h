// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

namespace moesaic::ops {

/// Whether router_product_cpu() computes this product sooner than a library does.
bool suits_router_kernel(const at::Tensor& x_Td, const at::Tensor& weight_Ed);

/// Computes x W^T for contiguous tensors that suit.
at::Tensor router_product_cpu(const at::Tensor& x_Td, const at::Tensor& weight_Ed);

}  // namespace moesaic::ops
