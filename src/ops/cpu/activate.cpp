// SPDX-License-Identifier: Apache-2.0
#include "activate.h"

#include <type_traits>

#include "activation_math.h"
#include "vector_clones.h"

namespace moesaic::ops {
namespace {

// Conversions that the compiler can turn into vectors.
MOESAIC_IN_CLONE float widen(float x) {
  return x;
}
MOESAIC_IN_CLONE double widen(double x) {
  return x;
}
MOESAIC_IN_CLONE float widen(c10::BFloat16 x) {
  const uint32_t bits = static_cast<uint32_t>(x.x) << 16;
  float wide;
  __builtin_memcpy(&wide, &bits, sizeof wide);
  return wide;
}
MOESAIC_IN_CLONE float widen(c10::Half x) {
  _Float16 half;
  __builtin_memcpy(&half, &x, sizeof half);
  return static_cast<float>(half);
}

// Rounds a sum to a number of type Scalar, still as wide as the sum. NaN keeps its high bits: those
// that come from numbers of two bytes have no others, so that rounding carries nothing over.
template <class Scalar>
MOESAIC_IN_CLONE Scalar rounded(Scalar x) {
  return x;
}
template <class Scalar>
requires std::is_same_v<Scalar, c10::BFloat16> MOESAIC_IN_CLONE float rounded(float x) {
  uint32_t bits;
  __builtin_memcpy(&bits, &x, sizeof bits);
  bits = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000u;
  __builtin_memcpy(&x, &bits, sizeof x);
  return x;
}
template <class Scalar>
requires std::is_same_v<Scalar, c10::Half> MOESAIC_IN_CLONE float rounded(float x) {
  return static_cast<float>(static_cast<_Float16>(x));
}

// Stores what rounded() returned.
MOESAIC_IN_CLONE void store(float x, float& to) {
  to = x;
}
MOESAIC_IN_CLONE void store(double x, double& to) {
  to = x;
}
MOESAIC_IN_CLONE void store(float x, c10::BFloat16& to) {
  uint32_t bits;
  __builtin_memcpy(&bits, &x, sizeof bits);
  to.x = static_cast<uint16_t>(bits >> 16);
}
MOESAIC_IN_CLONE void store(float x, c10::Half& to) {
  const auto half = static_cast<_Float16>(x);
  __builtin_memcpy(&to, &half, sizeof half);
}

template <class Function, class Scalar, bool keeps>
MOESAIC_IN_CLONE void finish_rows(const Epilogue<Scalar>& e) {
  for (int64_t i = 0; i < e.rows; ++i) {
    const SumOf<Scalar>* sums = e.sums + i * e.sums_stride;
    Scalar* before = e.before + i * e.before_stride;
    Scalar* out = e.out + i * e.out_stride;
#pragma GCC ivdep
    for (int64_t j = 0; j < e.columns; ++j) {
      const SumOf<Scalar> seen = rounded<Scalar>(sums[j] + widen(e.bias[j]));
      if (keeps) store(seen, before[j]);
      store(rounded<Scalar>(Function::value(seen)), out[j]);
    }
  }
}

template <class Function, class Scalar>
MOESAIC_IN_CLONE void finish_as(const Epilogue<Scalar>& e) {
  if (e.before != nullptr) {
    finish_rows<Function, Scalar, true>(e);
  } else {
    finish_rows<Function, Scalar, false>(e);
  }
}

template <class Function, class Scalar, bool activates>
MOESAIC_IN_CLONE void finish_backward_rows(const BackwardEpilogue<Scalar>& e) {
  for (int64_t i = 0; i < e.rows; ++i) {
    const SumOf<Scalar>* sums = e.sums + i * e.sums_stride;
    const Scalar* before = e.before + i * e.before_stride;
    Scalar* grad = e.grad + i * e.grad_stride;
    Scalar* active = e.active + i * e.active_stride;
#pragma GCC ivdep
    for (int64_t j = 0; j < e.columns; ++j) {
      const SumOf<Scalar> x = widen(before[j]);
      const SumOf<Scalar> g = sums[j] * Function::slope(x);
      store(rounded<Scalar>(g), grad[j]);
      if (activates) store(rounded<Scalar>(Function::value(x)), active[j]);
      e.bias_grad[j] += g;
    }
  }
}

template <class Function, class Scalar>
MOESAIC_IN_CLONE void finish_backward_as(const BackwardEpilogue<Scalar>& e) {
  if (e.active != nullptr) {
    finish_backward_rows<Function, Scalar, true>(e);
  } else {
    finish_backward_rows<Function, Scalar, false>(e);
  }
}

/// Calls use(the activation's functions).
template <class Use>
MOESAIC_IN_CLONE void with(Activation activation, Use use) {
  switch (activation) {
    case Activation::relu:
      return use(Relu{});
    case Activation::gelu_tanh:
      return use(GeluTanh{});
    case Activation::gelu:
      return use(GeluErf{});
    case Activation::cubic:
      return use(Cubic{});
    case Activation::identity:
      return use(Identity{});
    case Activation::celu:
      return use(Celu{});
    case Activation::tanh:
      return use(Tanh{});
  }
}

}  // namespace

#define MOESAIC_FINISH(Scalar)                                                                 \
  MOESAIC_VECTOR_CLONES void finish(const Epilogue<Scalar>& e) {                               \
    with(e.activation, [&](auto f) MOESAIC_IN_LAMBDA { finish_as<decltype(f)>(e); });          \
  }                                                                                            \
  MOESAIC_VECTOR_CLONES void finish_backward(const BackwardEpilogue<Scalar>& e) {              \
    with(e.activation, [&](auto f) MOESAIC_IN_LAMBDA { finish_backward_as<decltype(f)>(e); }); \
  }
#define MOESAIC_IN_LAMBDA __attribute__((always_inline))
MOESAIC_FINISH(float)
MOESAIC_FINISH(double)
MOESAIC_FINISH(c10::BFloat16)
MOESAIC_FINISH(c10::Half)
#undef MOESAIC_IN_LAMBDA
#undef MOESAIC_FINISH

namespace {

template <class Scalar>
MOESAIC_IN_CLONE void narrow_rows(const float* sums, int64_t rows, int64_t columns, int64_t stride,
                                  Scalar* to, int64_t to_stride) {
  for (int64_t i = 0; i < rows; ++i) {
#pragma GCC ivdep
    for (int64_t j = 0; j < columns; ++j) {
      store(rounded<Scalar>(sums[i * stride + j]), to[i * to_stride + j]);
    }
  }
}

}  // namespace

MOESAIC_VECTOR_CLONES void round_rows(const float* sums, int64_t rows, int64_t columns,
                                      int64_t stride, c10::BFloat16* to, int64_t to_stride) {
  narrow_rows(sums, rows, columns, stride, to, to_stride);
}
MOESAIC_VECTOR_CLONES void round_rows(const float* sums, int64_t rows, int64_t columns,
                                      int64_t stride, c10::Half* to, int64_t to_stride) {
  narrow_rows(sums, rows, columns, stride, to, to_stride);
}

}  // namespace moesaic::ops
