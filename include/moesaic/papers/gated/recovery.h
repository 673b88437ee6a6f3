// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

namespace moesaic {

/// Errors of section 4 of "Learning in Gated Neural Networks".
struct RecoveryError {
  /// 1 - max over permutations p of min over i of |<a_i, a*_p(i)>|, all of norm 1.
  double regressors = 0.0;
  /// 1 - the min cosine of w_i - w_m with w*_p(i), by the same permutation, where p(m) = k is the
  /// expert whose true gate is 0; 1 for gates of 0. Of more than two experts several permutations
  /// may share the min; then this is of one of them, and tells little.
  double gates = 0.0;
};

/// a: [k, d], w: [k - 1, d] or undefined, float64 on the CPU.
RecoveryError recovery_error(const at::Tensor& a_kd, const at::Tensor& true_a_kd,
                             const at::Tensor& w_kd, const at::Tensor& true_w_kd);

}  // namespace moesaic
