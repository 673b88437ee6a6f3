// SPDX-License-Identifier: Apache-2.0
#include "moesaic/data/mixup.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace moesaic {
namespace {

/// Draws the logarithm of a gamma variable of the given shape: for shape + 1 by Marsaglia and Tsang
/// (2000), then by a power of a uniform variable. Logarithms avoid the underflow of values of small
/// shapes.
double log_gamma_variable(double shape, CounterRng& rng) {
  const double d = shape + 1.0 - 1.0 / 3.0, c = 1.0 / std::sqrt(9.0 * d);
  while (true) {
    const double x = rng.normal(), v = std::pow(1.0 + c * x, 3.0);
    const double u = 1.0 - rng.uniform();  // A number in (0, 1].
    if (v <= 0 || std::log(u) >= 0.5 * x * x + d - d * v + d * std::log(v)) continue;
    return std::log(d * v) + std::log(1.0 - rng.uniform()) / shape;
  }
}

/// Puts the first row behind the others. at::roll has no shape function for the meta device.
at::Tensor rolled(const at::Tensor& rows) {
  return at::cat({rows.slice(0, 1), rows.slice(0, 0, 1)});
}

}  // namespace

double mixup_weight(double concentration, CounterRng& rng) {
  const double a = log_gamma_variable(concentration, rng);
  const double b = log_gamma_variable(concentration, rng);
  return 1.0 / (1.0 + std::exp(-std::abs(a - b)));
}

void mix_with_next(at::Tensor& images, double weight) {
  const int64_t batch = images.size(0);
  if (batch == 0) return;
  if (!images.is_cpu()) {
    images = images.mul(weight).add_(rolled(images), 1.0 - weight);
    return;
  }
  const int64_t numbers = images.numel() / batch;
  auto* x = images.mutable_data_ptr<float>();
  const auto own = static_cast<float>(weight), other = static_cast<float>(1.0 - weight);
  const std::vector<float> first(x, x + numbers);
  for (int64_t i = 0; i < batch; ++i) {
    const float* next = i + 1 < batch ? x + (i + 1) * numbers : first.data();
    float* row = x + i * numbers;
    for (int64_t j = 0; j < numbers; ++j) row[j] = own * row[j] + other * next[j];
  }
}

at::Tensor mixed_labels(const at::Tensor& labels, int64_t classes, double weight) {
  return mixed_labels(labels, rolled(labels), classes, weight);
}

at::Tensor mixed_labels(const at::Tensor& labels, const at::Tensor& next, int64_t classes,
                        double weight) {
  const auto one_hot = [&](const at::Tensor& of) {
    return at::one_hot(of, classes).to(at::kFloat);
  };
  return one_hot(labels).mul_(weight).add_(one_hot(next).mul_(1.0 - weight));
}

}  // namespace moesaic
