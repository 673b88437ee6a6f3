// SPDX-License-Identifier: Apache-2.0
// Training of patch-level mixtures of two-layer convolutional networks ("Patch-level Routing in
// Mixture-of-Experts is Provably Sample-efficient for Convolutional Neural Networks", model (1)) by
// the gradient's formula, many steps in one call.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace moesaic {

/// Weights of K experts of h neurons for patches of d numbers, with o outputs: float32, contiguous,
/// on the CPU. o = 1 for two classes, else the number of classes.
struct PatchWeights {
  at::Tensor router_Kd;    ///< Undefined where routers do not gate.
  at::Tensor neurons_Kdh;  ///< w_{r,s}
  at::Tensor outputs_Kho;  ///< a_{r,s,i}, which no step moves.
};

/// Examples, prepared for steps: of their patches only the numbers that are not 0 are kept, since
/// most pixels of a digit are. Immutable.
class PatchExamples {
 public:
  /// Takes examples x_Nnd [N, n, d] float32 of classes label_N [N] int64. With `routed_NKl` [N, K,
  /// l] int64, expert s only ever gets the patches routed_NKl[i, s] of example i; without, routing
  /// is left to the steps. Throws Error for other shapes or dtypes and for patches out of range.
  PatchExamples(const at::Tensor& x_Nnd, const at::Tensor& label_N,
                const at::Tensor& routed_NKl = {});
  ~PatchExamples();
  PatchExamples(PatchExamples&&) noexcept;
  PatchExamples& operator=(PatchExamples&&) noexcept;

  int64_t size() const;
  int64_t width() const;  ///< d

  struct Prepared;
  const Prepared& prepared() const { return *prepared_; }

 private:
  std::unique_ptr<Prepared> prepared_;
};

struct PatchSgdOptions {
  int64_t selected = 0;  ///< l, patches that an expert selects, where routers gate.
  double divisor = 1.0;  ///< What an expert's sum over its patches is divided by.
  double expert_lr = 0.2, router_lr = 0.2;
};

/// Means over steps of what a batch had before its step.
struct PatchSgdSteps {
  double loss = 0.0;      ///< The logistic loss (eqs. 2, 10), or the cross-entropy (eq. 24).
  double accuracy = 0.0;  ///< Fraction of the examples that are classified right.
};

/// Makes a step of gradient descent on each batch, given as numbers of examples, of
///
///     f_i(x) = 1 / divisor sum_s sum_{j in J_s} G_{j,s} sum_r a_{r,s,i} ReLU(<w_{r,s}, x_j>)
///
/// (eqs. 1, 23). Where weights have routers, J_s are the l patches of the largest <w_s, x_j>, of
/// equal ones the earlier, and G their softmax (eq. 4); routers then move with the experts.
/// Otherwise G = 1 (eq. 3) and J_s is as the examples were routed, or every patch for a single
/// expert (eq. 5). With one output f, class 0 is y = +1, class 1 is y = -1, and the loss log(1 +
/// exp(-y f)). Throws Error for arguments that do not fit each other.
PatchSgdSteps patch_sgd_steps(PatchWeights& weights, const PatchExamples& examples,
                              std::span<const std::vector<int64_t>> batches,
                              const PatchSgdOptions& options);

/// Returns the patches that routers [K, d] select of examples [N, n, d], [N, K, l] int64,
/// ascending: those of the `selected` largest <w_s, x_j>, of equal ones the earlier. Products are
/// float32.
at::Tensor select_patches(const at::Tensor& x_Nnd, const at::Tensor& router_Kd, int64_t selected);

}  // namespace moesaic
