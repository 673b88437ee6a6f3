// SPDX-License-Identifier: Apache-2.0
// Scalar activation functions.
#pragma once

#include <cmath>
#include <type_traits>

#include "moesaic/ops/activation.h"
#include "number.h"

namespace moesaic::ops::kernels {

using Act = Activation;

// x / 2 (1 + tanh(c (x + a x^3))) = x sigmoid(2 c (x + a x^3)), c = sqrt(2 / pi), a = 0.044715.
//
// With `Fast`, a GPU takes its approximate exponential and division: IEEE division and expf() of
// 3072 columns take as long as their memory. Their error of at most 2^-16 is lost in rows of two
// bytes, which keep at most 11 bits.
template <bool Fast, class S>
MOESAIC_INLINE S gelu_tanh_gate(S x) {
  const S z = S(1.5957691216057308) * (x + S(0.044715) * x * x * x);
#if defined(__CUDA_ARCH__)
  if constexpr (Fast) return __fdividef(1.0f, 1.0f + __expf(-z));
#endif
  return S(1) / (S(1) + std::exp(-z));
}

/// Pair of act(x) and act'(x); T is the type of the rows that x comes from.
template <class S>
struct Activated {
  S value, slope;
};

template <Act Kind, class T, class S = Sum<T>>
MOESAIC_INLINE Activated<S> activated(S x) {
  if constexpr (Kind == Act::relu) {
    return {x < S(0) ? S(0) : x, x <= S(0) ? S(0) : S(1)};  // NaN stays NaN.
  } else if constexpr (Kind == Act::gelu_tanh) {
    const S gate = gelu_tanh_gate<sizeof(T) == 2>(x);
    const S dz = S(1.5957691216057308) * (S(1) + S(3 * 0.044715) * x * x);
    return {x * gate, gate + x * gate * (S(1) - gate) * dz};
  } else if constexpr (Kind == Act::gelu) {
    const S below = S(0.5) * std::erfc(x * S(-0.70710678118654752));
    return {x * below, below + x * S(0.3989422804014327) * std::exp(S(-0.5) * x * x)};
  } else if constexpr (Kind == Act::cubic) {
    return {x * x * x, S(3) * x * x};
  } else if constexpr (Kind == Act::identity) {
    return {x, S(1)};
  } else if constexpr (Kind == Act::celu) {
    return {x > S(0) ? x : std::expm1(x), x > S(0) ? S(1) : std::exp(x)};
  } else {
    const S y = std::tanh(x);
    return {y, S(1) - y * y};
  }
}

/// Calls body(std::integral_constant) for an activation known at run time.
template <class Body>
MOESAIC_INLINE void with_activation(Act kind, const Body& body) {
  switch (kind) {
    case Act::relu:
      return body(std::integral_constant<Act, Act::relu>());
    case Act::gelu_tanh:
      return body(std::integral_constant<Act, Act::gelu_tanh>());
    case Act::gelu:
      return body(std::integral_constant<Act, Act::gelu>());
    case Act::cubic:
      return body(std::integral_constant<Act, Act::cubic>());
    case Act::identity:
      return body(std::integral_constant<Act, Act::identity>());
    case Act::celu:
      return body(std::integral_constant<Act, Act::celu>());
    case Act::tanh:
      return body(std::integral_constant<Act, Act::tanh>());
  }
}

}  // namespace moesaic::ops::kernels
