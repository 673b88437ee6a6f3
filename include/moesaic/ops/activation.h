// SPDX-License-Identifier: Apache-2.0
// This header needs no tensors: the inner loops of the CPU include it too.
#pragma once

#include <array>
#include <string_view>

namespace at {
class Tensor;
}

namespace moesaic {

/// The activation function between the two layers of an expert. Enumerators have the numbers of the
/// operators' schema.
enum class Activation {
  relu = 0,
  gelu_tanh = 1,  ///< x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))), as in V-MoE.
  gelu = 2,       ///< x Phi(x), computed with erf.
  cubic = 3,      ///< x^3.
  identity = 4,
  celu = 5,  ///< x for x >= 0, else exp(x) - 1.
  tanh = 6,
};

/// Names of the activations, in the order of their numbers.
inline constexpr std::array<std::string_view, 7> kActivationNames = {
    "relu", "gelu_tanh", "gelu", "cubic", "identity", "celu", "tanh"};

/// Throws Error (usage) naming the nearest activation for an unknown name.
Activation activation_from_name(std::string_view name);

/// Returns the activation of every number, by ATen, differentiable.
at::Tensor apply_activation(const at::Tensor& z, Activation activation);

}  // namespace moesaic
