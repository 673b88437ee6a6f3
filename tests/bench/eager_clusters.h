// SPDX-License-Identifier: Apache-2.0
// A step of the clusters paper's mixture in nothing but ATen, in two ways: the peers of the
// benchmark.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace moesaic::bench {

/// 16 000 inputs of 4 patches of width 50, 8 experts of 16 cubic filters for 2 classes.
struct ClusterStep {
  at::Tensor x_NPd, labels_N;
  at::Tensor w, b;      // [E, d, J], [E, J]
  at::Tensor router;    // [E, d]
  at::Tensor noise_NE;  // of this step
};

/// Loss (the cross entropy of probabilities taken for logits) and gradients.
struct ClusterGradients {
  at::Tensor loss, w, b, router;
};

/// As the authors' code does it: a one-hot tensor [N, E] sends each input, or zeros, to every
/// expert, so that all experts compute all inputs; gradients by autograd.
ClusterGradients dense_dispatch_step(const ClusterStep& step);

/// Each expert computes the inputs that selected it; gradients by their formulas, without autograd.
ClusterGradients closed_form_step(const ClusterStep& step);

/// Experts by normalised gradient descent (rate 0.001, eq. 3.4), the router by gradient descent
/// (0.1, eq. 3.5), in place.
void descend(ClusterStep& step, const ClusterGradients& gradients);

}  // namespace moesaic::bench
