// SPDX-License-Identifier: Apache-2.0
// t-SNE: points of many dimensions on a plane, neighbours beside neighbours (van der Maaten and
// Hinton, "Visualizing Data using t-SNE", JMLR 2008). Exact: time and memory grow with the square
// of the points, of which it takes some thousand.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>

namespace moesaic {

struct TsneOptions {
  double perplexity = 30.0;    ///< neighbours that count, as an effective number
  int64_t iterations = 1000;   ///< of gradient descent
  double exaggeration = 12.0;  ///< of the affinities in the first iterations
  int64_t exaggerated = 250;   ///< so many
  double learning_rate = 0.0;  ///< 0: max(N / exaggeration / 4, 50)
  /// Called after each iteration; false ends the descent early.
  std::function<bool(int64_t done, int64_t total)> proceed;
};

/// p_ij = (p_j|i + p_i|j) / 2N, symmetric, sum 1, where p_j|i ~ exp(-|x_i - x_j|^2 / 2 sigma_i^2)
/// and sigma_i gives row i the perplexity 2^entropy that is asked for (section 2). x_ND: [N, D] of
/// any floating type, two points at least. Returns [N, N] float64. Throws Error (usage) for a
/// perplexity that is not between 1 and N - 1.
at::Tensor tsne_affinities(const at::Tensor& x_ND, double perplexity);

/// KL(P || Q), eq. 2, with q_ij ~ 1 / (1 + |y_i - y_j|^2) (eq. 4). y_N2: [N, 2] of P's dtype.
double tsne_divergence(const at::Tensor& p_NN, const at::Tensor& y_N2);
/// Its gradient [N, 2]: 4 sum_j (p_ij - q_ij) (y_i - y_j) / (1 + |y_i - y_j|^2) (eq. 5).
at::Tensor tsne_gradient(const at::Tensor& p_NN, const at::Tensor& y_N2);

/// The points on the plane: [N, 2] float64. Starts from the two principal components, so that equal
/// inputs give equal images; gradient descent with momentum 0.5, then 0.8, and a gain for each
/// coordinate.
at::Tensor tsne(const at::Tensor& x_ND, const TsneOptions& options = {});

}  // namespace moesaic
