// SPDX-License-Identifier: Apache-2.0
#include "moesaic/report/tsne.h"

#include <ATen/Parallel.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "moesaic/base/error.h"

namespace moesaic {
namespace {

at::Tensor squared_distances(const at::Tensor& x_ND) {
  const at::Tensor squares = x_ND.square().sum(1);
  return (squares.unsqueeze(0) + squares.unsqueeze(1) - 2.0 * x_ND.mm(x_ND.t())).clamp_min(0.0);
}

/// Computes p_j|i of one row of distances, by bisection on beta = 1 / 2 sigma^2.
void conditional_affinities(const double* distances, int64_t count, int64_t self, double entropy,
                            double* p) {
  constexpr int kSteps = 100;
  constexpr double kTolerance = 1e-5;
  double low = 0.0, high = std::numeric_limits<double>::infinity(), beta = 1.0;
  const double nearest = [&] {
    double min = std::numeric_limits<double>::infinity();
    for (int64_t j = 0; j < count; ++j) {
      if (j != self) min = std::min(min, distances[j]);
    }
    return min;
  }();
  for (int step = 0; step < kSteps; ++step) {
    double sum = 0.0, weighted = 0.0;
    for (int64_t j = 0; j < count; ++j) {
      p[j] = j == self ? 0.0 : std::exp(-beta * (distances[j] - nearest));
      sum += p[j];
      weighted += p[j] * (distances[j] - nearest);
    }
    const double off = std::log(sum) + beta * weighted / sum - entropy;
    for (int64_t j = 0; j < count; ++j) p[j] /= sum;
    if (std::abs(off) <= kTolerance) return;
    (off > 0 ? low : high) = beta;
    beta = std::isinf(high) ? 2.0 * beta : (low + high) / 2.0;
  }
}

/// Returns 1 / (1 + |y_i - y_j|^2), 0 on the diagonal.
at::Tensor student_weights(const at::Tensor& y_N2) {
  return (1.0 + squared_distances(y_N2)).reciprocal().fill_diagonal_(0.0);
}

/// Returns the first two principal components, the first with a standard deviation of 1e-4.
at::Tensor principal_components(const at::Tensor& x_ND) {
  const at::Tensor centred = x_ND - x_ND.mean(0, true);
  auto [u, s, vt] = at::linalg_svd(centred, /*full_matrices=*/false);
  at::Tensor y = at::zeros({x_ND.size(0), 2}, x_ND.options());
  const int64_t found = std::min<int64_t>(2, s.size(0));
  y.narrow(1, 0, found).copy_(u.narrow(1, 0, found) * s.narrow(0, 0, found));
  // The sign of a singular vector is arbitrary: the largest coordinate is made positive.
  const at::Tensor largest = y.gather(0, y.abs().argmax(0, true));
  y = y * at::where(largest < 0, -1.0, 1.0);
  return y * (1e-4 / y.select(1, 0).std(/*unbiased=*/false).clamp_min(1e-300));
}

}  // namespace

at::Tensor tsne_affinities(const at::Tensor& x_ND, double perplexity) {
  const int64_t count = x_ND.size(0);
  if (!(perplexity >= 1.0 && perplexity <= static_cast<double>(count - 1))) {
    fail_usage("t-SNE: perplexity must be between 1 and {} for {} points, found {}", count - 1,
               count, perplexity);
  }
  const at::Tensor distances = squared_distances(x_ND.to(at::kDouble)).contiguous();
  at::Tensor p = at::empty({count, count}, at::kDouble);
  const auto* from = distances.const_data_ptr<double>();
  auto* const to = p.mutable_data_ptr<double>();
  at::parallel_for(0, count, 16, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      conditional_affinities(from + i * count, count, i, std::log(perplexity), to + i * count);
    }
  });
  p = p + p.t();
  return p / p.sum();
}

double tsne_divergence(const at::Tensor& p_NN, const at::Tensor& y_N2) {
  const at::Tensor weight = student_weights(y_N2);
  // Where p is 0 so is its term, for any q: on the diagonal both are 0.
  const at::Tensor ratio = at::where(p_NN > 0, p_NN * weight.sum() / weight, 1.0);
  return at::xlogy(p_NN, ratio).sum().item<double>();
}

at::Tensor tsne_gradient(const at::Tensor& p_NN, const at::Tensor& y_N2) {
  const at::Tensor weight = student_weights(y_N2);
  const at::Tensor pull = (p_NN - weight / weight.sum()) * weight;
  return 4.0 * (pull.sum(1, true) * y_N2 - pull.mm(y_N2));
}

at::Tensor tsne(const at::Tensor& x_ND, const TsneOptions& options) {
  const torch::NoGradGuard no_grad;
  const at::Tensor x = x_ND.to(at::kDouble);
  const auto count = static_cast<double>(x.size(0));
  const double rate = options.learning_rate > 0
                          ? options.learning_rate
                          : std::max(count / options.exaggeration / 4.0, 50.0);
  // The descent runs in float32: four times as fast and precise enough for an image.
  const at::Tensor p = tsne_affinities(x, options.perplexity).to(at::kFloat);
  const at::Tensor exaggerated = p * options.exaggeration;
  at::Tensor y = principal_components(x).to(at::kFloat);
  at::Tensor move = at::zeros_like(y), gain = at::ones_like(y);
  for (int64_t i = 0; i < options.iterations; ++i) {
    const bool early = i < options.exaggerated;
    const at::Tensor grad = tsne_gradient(early ? exaggerated : p, y);
    gain = at::where((grad > 0) == (move > 0), gain * 0.8, gain + 0.2).clamp_min(0.01);
    move = (early ? 0.5 : 0.8) * move - rate * gain * grad;
    y = y + move;
    if (options.proceed && !options.proceed(i + 1, options.iterations)) break;
  }
  return y.to(at::kDouble);
}

}  // namespace moesaic
