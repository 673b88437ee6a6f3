// SPDX-License-Identifier: Apache-2.0
// Online SGD on the sphere with the correlation loss, which trains the first layers of the latent
// clusters paper (Algorithm 1, phases I and III), many single-sample steps a call.
#pragma once

#include <ATen/core/Tensor.h>

namespace moesaic {

/// First layers of the experts of a mixture: of M experts and N neurons, neuron n belongs to expert
/// n / (N / M). float32, contiguous, on the CPU.
struct SphericalNeurons {
  at::Tensor w_Nd;  ///< Rows of norm 1, which the caller vouches for; moved in place.
  at::Tensor a_N;   ///< Weight of each neuron in the second layer.
  at::Tensor b_N;   ///< Bias of each neuron.
  /// Activation of each neuron, sigma_n(z) = sum over k of hermite_NK[n][k] He_k(z) / sqrt(k!)
  /// (appendix A.3); undefined: ReLU.
  at::Tensor hermite_NK;
};

/// Samples, and the experts that each goes to as a CSR matrix of experts x samples, as every
/// routing is one. Contiguous, on the CPU; float32 but for the indices.
struct RoutedSamples {
  at::Tensor x_Sd;
  at::Tensor y_S;
  at::Tensor offset;  ///< int64 [M + 1]
  at::Tensor sample;  ///< int64 or int32 [A], the samples of expert 0, then those of 1, ...
  at::Tensor gate;    ///< [A]
};

/// Takes, one after the other in the order of `sample`, a step for every sample i of expert m with
/// gate pi and every neuron w of m (Algorithm 1, "normalized SGD"): with p = <w, x_i>,
/// g = a sigma'(p + b) and k = step pi y_i g,
///     w <- w + k (x_i - p w),   w <- w / |w|.
/// relu' is 1 above 0 and 0 elsewhere. The norm is sqrt(1 + k^2 (|x|^2 - p^2)) until a call ends,
/// when each row that had samples is divided by its own.
///
/// Neurons do not meet each other under this loss, so that each streams through all samples of its
/// expert at once. Calls of 2 048 samples are as fast as any: an expert's neurons cost as much as
/// 10 samples to take up and put down. A call takes A (d + 9) numbers of memory. The result does
/// not depend on the number of threads; its rounding does on the processor's vectors and on where a
/// stream is cut into calls.
///
/// Nothing is looked at: a sample that is not finite leaves NaN in the neurons it moves.
void spherical_sgd(SphericalNeurons& neurons, const RoutedSamples& samples, double step);

}  // namespace moesaic
