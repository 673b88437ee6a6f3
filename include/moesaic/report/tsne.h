// SPDX-License-Identifier: Apache-2.0
// Exact t-SNE (van der Maaten and Hinton, "Visualizing Data using t-SNE", JMLR 2008): embeds points
// of many dimensions in a plane. Time and memory are quadratic in the number of points, so that it
// suits some thousand.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>

namespace moesaic {

struct TsneOptions {
  double perplexity = 30.0;    ///< Effective number of neighbours.
  int64_t iterations = 1000;   ///< Iterations of gradient descent.
  double exaggeration = 12.0;  ///< Factor on affinities in the first iterations.
  int64_t exaggerated = 250;   ///< Number of iterations with exaggeration.
  double learning_rate = 0.0;  ///< 0 means max(N / exaggeration / 4, 50).
  /// Called after each iteration; false ends the descent early.
  std::function<bool(int64_t done, int64_t total)> proceed;
};

/// Returns p_ij = (p_j|i + p_i|j) / 2N, [N, N] float64, symmetric with sum 1, where p_j|i is
/// proportional to exp(-|x_i - x_j|^2 / 2 sigma_i^2) and sigma_i gives row i the perplexity
/// 2^entropy = `perplexity` (section 2). x_ND is [N, D] of any floating type with N >= 2. Throws
/// Error (usage) for a perplexity that is not between 1 and N - 1.
at::Tensor tsne_affinities(const at::Tensor& x_ND, double perplexity);

/// Returns KL(P || Q), eq. 2, with q_ij ~ 1 / (1 + |y_i - y_j|^2) (eq. 4); y_N2 has P's dtype.
double tsne_divergence(const at::Tensor& p_NN, const at::Tensor& y_N2);
/// Returns the gradient [N, 2]: 4 sum_j (p_ij - q_ij) (y_i - y_j) / (1 + |y_i - y_j|^2) (eq. 5).
at::Tensor tsne_gradient(const at::Tensor& p_NN, const at::Tensor& y_N2);

/// Returns the embedded points, [N, 2] float64. Starts from the first two principal components, so
/// that the result is deterministic; gradient descent with momentum 0.5, then 0.8, and a gain for
/// each coordinate.
at::Tensor tsne(const at::Tensor& x_ND, const TsneOptions& options = {});

}  // namespace moesaic
