// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <vector>

#include "moesaic/ops/activation.h"

namespace moesaic::testing {

/// All activations by their names.
inline std::vector<Activation> all_activations() {
  std::vector<Activation> all;
  for (const auto name : kActivationNames) all.push_back(activation_from_name(name));
  return all;
}

/// act(x) as its definition says it.
inline double activation_reference(double x, Activation activation) {
  switch (activation) {
    case Activation::relu:
      return x < 0 ? 0 : x;
    case Activation::gelu_tanh:
      return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    case Activation::gelu:
      return 0.5 * x * std::erfc(-x / std::sqrt(2.0));
    case Activation::cubic:
      return x * x * x;
    case Activation::identity:
      return x;
    case Activation::celu:
      return x > 0 ? x : std::expm1(x);
    case Activation::tanh:
      return std::tanh(x);
  }
  return NAN;
}

}  // namespace moesaic::testing
