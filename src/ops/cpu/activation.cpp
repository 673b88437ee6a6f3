// SPDX-License-Identifier: Apache-2.0
#include "activation.h"

#include <cmath>
#include <cstring>

// One clone of each loop per instruction set, chosen when the library is loaded: one binary runs
// everywhere and is fast on wide vectors.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define MOESAIC_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define MOESAIC_CLONES
#endif
#define MOESAIC_INLINE inline __attribute__((always_inline))

namespace moesaic::ops {
namespace {

// gelu_tanh(x) = x / 2 (1 + tanh(c (x + a x^3))) = x sigmoid(2 c (x + a x^3)), c = sqrt(2 / pi), a
// = 0.044715.
constexpr double kTwoC = 1.5957691216057308;
constexpr double kCubic = 0.044715;

MOESAIC_INLINE float exp_fast(float x) {
  // exp(x) = 2^n exp(r) with |r| <= ln 2 / 2: Taylor to the 7th power is exact to 1e-7 there.
  // Adding 1.5 * 2^23 rounds to the nearest integer and leaves it in the low bits, which keeps the
  // loop free of calls and thus vectorisable.
  x = x < -87.0f ? -87.0f : x;
  x = x > 88.0f ? 88.0f : x;
  const float shifted = x * 1.44269504f + 12582912.0f;
  const float n = shifted - 12582912.0f;
  float r = x - n * 0.693359375f;
  r = r + n * 2.12194440e-4f;
  float p = 1.0f / 5040.0f;
  p = p * r + 1.0f / 720.0f;
  p = p * r + 1.0f / 120.0f;
  p = p * r + 1.0f / 24.0f;
  p = p * r + 1.0f / 6.0f;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  int32_t bits;
  std::memcpy(&bits, &shifted, sizeof bits);
  const int32_t scale_bits = (bits - 0x4B400000 + 127) << 23;
  float scale;
  std::memcpy(&scale, &scale_bits, sizeof scale);
  return p * scale;
}

MOESAIC_INLINE double exp_fast(double x) {
  return std::exp(x);
}

template <class Scalar>
MOESAIC_INLINE Scalar gelu_gate(Scalar x) {
  const Scalar z = Scalar(kTwoC) * (x + Scalar(kCubic) * x * x * x);
  return Scalar(1) / (Scalar(1) + exp_fast(-z));
}

template <class Scalar>
MOESAIC_INLINE Scalar gelu_slope(Scalar x, Scalar gate) {
  const Scalar dz = Scalar(kTwoC) * (Scalar(1) + Scalar(3 * kCubic) * x * x);
  return gate + x * gate * (Scalar(1) - gate) * dz;
}

template <class Scalar>
MOESAIC_INLINE void gelu_rows(Scalar* __restrict hidden, const Scalar* __restrict bias, Scalar* out,
                              int64_t rows, int64_t width) {
  for (int64_t r = 0; r < rows; ++r) {
    Scalar* h = hidden + r * width;
    Scalar* o = out + r * width;
#pragma GCC ivdep
    for (int64_t j = 0; j < width; ++j) {
      const Scalar x = h[j] + bias[j];
      h[j] = x;
      o[j] = x * gelu_gate(x);
    }
  }
}

template <class Scalar>
MOESAIC_INLINE void relu_rows(Scalar* __restrict hidden, const Scalar* __restrict bias, Scalar* out,
                              int64_t rows, int64_t width) {
  for (int64_t r = 0; r < rows; ++r) {
    Scalar* h = hidden + r * width;
    Scalar* o = out + r * width;
#pragma GCC ivdep
    for (int64_t j = 0; j < width; ++j) {
      const Scalar x = h[j] + bias[j];
      h[j] = x;
      o[j] = x > Scalar(0) ? x : Scalar(0);
    }
  }
}

template <class Scalar>
MOESAIC_INLINE void gelu_backward(const Scalar* __restrict hidden, Scalar* __restrict grad,
                                  Scalar* __restrict out, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const Scalar x = hidden[i];
    const Scalar gate = gelu_gate(x);
    out[i] = x * gate;
    grad[i] *= gelu_slope(x, gate);
  }
}

template <class Scalar>
MOESAIC_INLINE void relu_backward(const Scalar* __restrict hidden, Scalar* __restrict grad,
                                  Scalar* __restrict out, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const bool positive = hidden[i] > Scalar(0);
    out[i] = positive ? hidden[i] : Scalar(0);
    grad[i] = positive ? grad[i] : Scalar(0);
  }
}

MOESAIC_CLONES void gelu_rows_float(float* h, const float* b, float* o, int64_t rows,
                                    int64_t width) {
  gelu_rows(h, b, o, rows, width);
}
MOESAIC_CLONES void relu_rows_float(float* h, const float* b, float* o, int64_t rows,
                                    int64_t width) {
  relu_rows(h, b, o, rows, width);
}
MOESAIC_CLONES void gelu_backward_float(const float* h, float* g, float* o, int64_t count) {
  gelu_backward(h, g, o, count);
}
MOESAIC_CLONES void relu_backward_float(const float* h, float* g, float* o, int64_t count) {
  relu_backward(h, g, o, count);
}

}  // namespace

template <>
void bias_activation<float>(Activation activation, float* hidden, const float* bias, float* out,
                            int64_t rows, int64_t width) {
  if (activation == Activation::relu) {
    relu_rows_float(hidden, bias, out, rows, width);
  } else {
    gelu_rows_float(hidden, bias, out, rows, width);
  }
}

template <>
void bias_activation<double>(Activation activation, double* hidden, const double* bias, double* out,
                             int64_t rows, int64_t width) {
  if (activation == Activation::relu) {
    relu_rows(hidden, bias, out, rows, width);
  } else {
    gelu_rows(hidden, bias, out, rows, width);
  }
}

template <>
void activation_backward<float>(Activation activation, const float* hidden, float* grad, float* out,
                                int64_t count) {
  if (activation == Activation::relu) {
    relu_backward_float(hidden, grad, out, count);
  } else {
    gelu_backward_float(hidden, grad, out, count);
  }
}

template <>
void activation_backward<double>(Activation activation, const double* hidden, double* grad,
                                 double* out, int64_t count) {
  if (activation == Activation::relu) {
    relu_backward(hidden, grad, out, count);
  } else {
    gelu_backward(hidden, grad, out, count);
  }
}

}  // namespace moesaic::ops
