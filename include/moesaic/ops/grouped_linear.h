// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

namespace moesaic {

/// Applies the linear layer of expert e to its rows: x W_e + b_e. Composed of LibTorch's operators,
/// for experts that no fused operator computes, such as MLPs with dropout.
///
/// rows_Ap: [A, p]; offsets_K: [K + 1] int32; w_Kpq: [K, p, q]; b_Kq: [K, q], of the rows' dtype,
/// which autocast may lower. Returns [A, q]; rows past offsets[K] are zero. Differentiable; an
/// expert without rows gets exactly zero gradients, but the gradients of rows past offsets[K] may
/// be anything: whatever made these rows must ignore them, as dispatch() does. On a GPU with
/// grouped products (bfloat16, Hopper and Blackwell) nothing waits for the host; elsewhere the
/// offsets are read once.
at::Tensor grouped_linear(const at::Tensor& rows_Ap, const at::Tensor& offsets_K,
                          const at::Tensor& w_Kpq, const at::Tensor& b_Kq);

}  // namespace moesaic
