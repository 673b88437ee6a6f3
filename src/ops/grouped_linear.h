// SPDX-License-Identifier: Apache-2.0
// The two ways to compute grouped_linear(), which tests compare on the CPU.
#pragma once

#include <ATen/core/Tensor.h>

namespace moesaic::ops {

/// A product for each expert, after one read of the offsets.
at::Tensor linear_by_expert(const at::Tensor& rows, const at::Tensor& offsets, const at::Tensor& w,
                            const at::Tensor& b);
/// One grouped product; offsets stay on the device.
at::Tensor linear_by_grouped_mm(const at::Tensor& rows, const at::Tensor& offsets,
                                const at::Tensor& w, const at::Tensor& b);

}  // namespace moesaic::ops
