// SPDX-License-Identifier: Apache-2.0
#include "moesaic/report/statistics.h"

#include <cmath>
#include <numbers>

namespace moesaic {
namespace {

/// Returns the probability of |T| <= sqrt(degrees_of_freedom) tan(angle), which for whole degrees
/// of freedom is a finite sum: Abramowitz and Stegun, 26.7.3 and 26.7.4.
double t_probability(double angle, int64_t degrees_of_freedom) {
  const bool odd = degrees_of_freedom % 2 == 1;
  const double cosine = std::cos(angle);
  double sum = 0.0, term = odd ? cosine : 1.0;
  for (int64_t k = odd ? 1 : 0; k + 2 <= degrees_of_freedom; k += 2) {
    sum += term;
    term *= static_cast<double>(k + 1) / static_cast<double>(k + 2) * cosine * cosine;
  }
  sum *= std::sin(angle);
  return odd ? 2.0 / std::numbers::pi * (angle + sum) : sum;
}

}  // namespace

std::optional<double> Moments::standard_error() const {
  if (!std) return std::nullopt;
  return *std / std::sqrt(static_cast<double>(n));
}

std::optional<double> Moments::confidence_half_width() const {
  constexpr double kInside = 0.95;
  if (!std) return std::nullopt;
  return t_quantile(kInside, n - 1) * *standard_error();
}

Moments moments(const std::vector<double>& values) {
  Moments result{.n = static_cast<int64_t>(values.size())};
  double sum = 0.0, squares = 0.0;
  for (const double value : values) sum += value;
  result.mean = sum / static_cast<double>(result.n);
  if (result.n == 1) return result;
  for (const double value : values) squares += (value - result.mean) * (value - result.mean);
  result.std = std::sqrt(squares / static_cast<double>(result.n - 1));
  return result;
}

double t_quantile(double probability, int64_t degrees_of_freedom) {
  constexpr int kHalvings = 60;  // As many as a double has digits, and some.
  double low = 0.0, high = std::numbers::pi / 2.0;
  for (int i = 0; i < kHalvings; ++i) {
    const double middle = (low + high) / 2.0;
    (t_probability(middle, degrees_of_freedom) < probability ? low : high) = middle;
  }
  return std::sqrt(static_cast<double>(degrees_of_freedom)) * std::tan(low);
}

}  // namespace moesaic
