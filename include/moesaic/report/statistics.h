// SPDX-License-Identifier: Apache-2.0
// Statistics of the runs of an experiment: of a sample of values, and of a mean that they estimate.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace moesaic {

/// Mean and spread of values.
struct Moments {
  double mean = 0.0;
  std::optional<double> std = {};  ///< Sample deviation (divisor n - 1); unset for one value.
  int64_t n = 0;

  /// Returns the standard error of the mean, std / sqrt(n).
  std::optional<double> standard_error() const;
  /// Returns half of the width of the mean's 95 % interval, by Student's t with n - 1 degrees of
  /// freedom.
  std::optional<double> confidence_half_width() const;
};

/// Returns mean and standard deviation of at least one value.
Moments moments(const std::vector<double>& values);

/// Returns the t with |T| <= t at this probability (above 0, below 1), T having Student's
/// distribution with at least one degree of freedom.
double t_quantile(double probability, int64_t degrees_of_freedom);

}  // namespace moesaic
