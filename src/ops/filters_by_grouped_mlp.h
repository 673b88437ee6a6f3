// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <tuple>

namespace moesaic::ops {

/// Computes filter_experts() by the operators of MLPs, for devices, dtypes and gradients that its
/// own kernels do not support; nothing is kept.
std::tuple<at::Tensor, at::Tensor> filters_by_grouped_mlp(
    const at::Tensor& x, const at::Tensor& offsets, const at::Tensor& token, const at::Tensor& w,
    const at::Tensor& b, int64_t outputs, int64_t activation, bool keep_hidden);

}  // namespace moesaic::ops
