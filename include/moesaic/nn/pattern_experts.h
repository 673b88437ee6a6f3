// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/pimpl.h>

#include <vector>

#include "moesaic/nn/experts.h"

namespace moesaic::nn {

/// Experts of the pruning paper's theory (section 4.2), in the basis of the patterns: a token is
/// the number p of a pattern, neuron r of expert s has the inner product w[s, p, r] with it, and
/// the expert's output is a(s) sum_r ReLU(w[s, p, r]) with a fixed sign a(s). Parameter `w` [K, d,
/// m], buffer `sign` [K]. SGD in this basis is SGD in any other, since the patterns are
/// orthonormal.
class PatternExpertsImpl : public Experts {
 public:
  /// Neurons are drawn from N(0, std^2); the first half of the experts has the sign +1.
  PatternExpertsImpl(int64_t experts, int64_t patterns, int64_t hidden, double std,
                     const at::Generator& generator);

  /// Computes tokens x_T1 [T, 1] -> [A, 1].
  ExpertRows compute(const at::Tensor& x_T1, const Routing& routing,
                     const at::Generator& random) override;
  int64_t count() const override { return w.size(0); }
  int64_t outputs() const override { return 1; }
  /// Returns the FLOPs of products of a neuron with a token of d numbers.
  double flops_per_row() const override { return 2.0 * static_cast<double>(w.size(1) * w.size(2)); }
  ExpertMatrices matrices(int64_t slot, const ParameterValues& values) const override {
    return {.hidden = {values(w)[slot].t()}, .others = {}};
  }

  at::Tensor w, sign;
};
TORCH_MODULE(PatternExperts);

}  // namespace moesaic::nn
