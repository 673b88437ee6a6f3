// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstddef>
#include <vector>

namespace moesaic {

/// Returns sum_k c[k] He_k(z) / sqrt(k!): the probabilists' Hermite polynomials, of norm 1 under
/// N(0, 1) (definition 3.1 of the latent paper).
inline double hermite_series(const std::vector<double>& c, double z) {
  double before = 0.0, now = 1.0, sum = 0.0;
  for (size_t k = 0; k < c.size(); ++k) {
    sum += c[k] * now;
    const auto degree = static_cast<double>(k);
    const double next = (z * now - std::sqrt(degree) * before) / std::sqrt(degree + 1.0);
    before = now;
    now = next;
  }
  return sum;
}

}  // namespace moesaic
