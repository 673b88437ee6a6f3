// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

namespace moesaic::ops {

/// Returns whether router_product_cpu() is faster than a library for this product.
bool suits_router_kernel(const at::Tensor& x_Td, const at::Tensor& weight_Ed);

/// Computes x W^T for contiguous tensors for which suits_router_kernel() holds.
at::Tensor router_product_cpu(const at::Tensor& x_Td, const at::Tensor& weight_Ed);

}  // namespace moesaic::ops
