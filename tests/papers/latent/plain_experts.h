// SPDX-License-Identifier: Apache-2.0
// Experts of the latent paper by plain loops in float64.
#pragma once

#include <torch/torch.h>

#include <algorithm>
#include <cmath>

#include "moesaic/papers/latent.h"

namespace moesaic::testing {

/// He_3 to He_5 over the roots of their factorials.
inline double hermite(int64_t degree, double z) {
  const double z2 = z * z;
  if (degree == 3) return (z2 - 3) * z / std::sqrt(6.0);
  if (degree == 4) return ((z2 - 6) * z2 + 3) / std::sqrt(24.0);
  return ((z2 - 10) * z2 + 15) * z / std::sqrt(120.0);
}

inline double dot_product(const at::Tensor& a, const at::Tensor& b) {
  double sum = 0.0;
  for (int64_t j = 0; j < a.size(0); ++j) sum += a[j].item<double>() * b[j].item<double>();
  return sum;
}

/// f_m(x) of section 3.2.
inline double plain_output(const nn::ShallowExpertsImpl& experts, int64_t m, const at::Tensor& x) {
  const int64_t neurons = experts.w.size(1);
  double sum = 0.0;
  for (int64_t j = 0; j < neurons; ++j) {
    const double z = dot_product(experts.w[m][j], x) + experts.b[m][j].item<double>();
    double value = experts.hermite.defined() ? 0.0 : std::max(z, 0.0);
    for (int64_t k = 3; experts.hermite.defined() && k <= 5; ++k) {
      value += experts.hermite[m][j][k].item<double>() * hermite(k, z);
    }
    sum += experts.a[m][j].item<double>() * value;
  }
  return sum / static_cast<double>(neurons);
}

}  // namespace moesaic::testing
