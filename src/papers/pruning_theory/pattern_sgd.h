// SPDX-License-Identifier: Apache-2.0
// Algorithm 1 of the pruning paper in the basis of its patterns, where a product of a weight with a
// token is the look-up of a number.
#pragma once

#include <ATen/core/Tensor.h>

namespace moesaic {

/// Weights of K experts over d patterns with m neurons each, float32, contiguous, on the CPU.
struct PatternWeights {
  at::Tensor router_Kd;
  at::Tensor neurons_Kdm;
  at::Tensor sign_K;  ///< a(s), +1 or -1.
};

/// Examples as patterns of their tokens.
struct PatternBatch {
  at::Tensor tokens_Bn;  ///< int32, in [0, d).
  at::Tensor y_B;        ///< float32, +1 or -1.
};

struct PatternSgdOptions {
  int64_t num_selected_tokens = 5;  ///< l, tokens that an expert selects.
  double expert_lr = 0.02, router_lr = 0.01;
};

struct PatternStep {
  double hinge = 0.0;     ///< Mean of max(0, 1 - y f(x)) before the step.
  double accuracy = 0.0;  ///< Fraction of the examples with y f(x) > 0 before the step.
};

/// Makes one step of gradient descent on the mean of 1 - y f(x) (section 4.2, training method):
/// each expert selects the l tokens of the largest routing values, gates them by a softmax over
/// these (eq. 4), and f sums sign, gate and ReLUs (eq. 7). Of tokens of equal routing value, which
/// are of one pattern unless values coincide, those of the lower pattern come first. Throws Error
/// for more selected tokens than there are.
PatternStep pattern_sgd_step(PatternWeights& weights, const PatternBatch& batch,
                             const PatternSgdOptions& options);

}  // namespace moesaic
