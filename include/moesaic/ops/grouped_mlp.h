// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include "moesaic/ops/activation.h"

namespace moesaic {

/// Stacked weights of the experts; every tensor has the dtype of the rows, but for w1 and w2 of
/// int8.
struct ExpertWeights {
  at::Tensor w1;           ///< [K, d, m]
  at::Tensor b1;           ///< [K, m]
  at::Tensor w2;           ///< [K, m, d]
  at::Tensor b2;           ///< [K, d]
  bool is_packed = false;  ///< w1 and w2 come from pack_experts() or quantise_experts().
  at::Tensor w1_scale = {}, w2_scale = {};  ///< [K, m], [K, d], of int8; undefined for others.
};

/// Applies expert e to its rows: act(x W1_e + b1_e) W2_e + b2_e (f_s of the pruning paper, eq. 2,
/// without the gate).
///
/// rows_Ad: [A, d] bfloat16, float16, float32 or float64; offsets_K: [K + 1] int32. Returns
/// [A, d]; rows past offsets[K] are zero. Differentiable in rows and weights; an expert without
/// rows gets exactly zero gradients.
at::Tensor grouped_mlp(const at::Tensor& rows_Ad, const at::Tensor& offsets_K,
                       const ExpertWeights& weights, Activation activation);

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
