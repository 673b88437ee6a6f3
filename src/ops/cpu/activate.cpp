// SPDX-License-Identifier: Apache-2.0
#include "activate.h"

#include <type_traits>

#include "moesaic/ops/function_attributes.h"

namespace moesaic::ops {
namespace {

// Activations as branch-free scalar code that the compiler turns into vectors. float uses own exp
// and erfc, exact to some 1e-7; double calls the C library.

constexpr float kMaxPower = 100.0f;

MOESAIC_IN_CLONE float exp2_of(float x) {
  // 2^x = 2^n 2^r with |r| <= 1/2, where a fit of degree 5 is exact to 8e-8. Adding 1.5 * 2^23
  // rounds to the nearest integer and leaves it in the low bits, which keeps the loop free of
  // calls. The bounds keep results far above subnormal numbers: a compiler computes what a caller
  // makes of a bound for all lanes, and a subnormal product takes a hundred times as long.
  x = x < -kMaxPower ? -kMaxPower : x;
  x = x > kMaxPower ? kMaxPower : x;
  const float shifted = x + 12582912.0f;
  const float r = x - (shifted - 12582912.0f);
  float p = 0.001326697039f;
  p = p * r + 0.009675459746f;
  p = p * r + 0.05550742616f;
  p = p * r + 0.2402212175f;
  p = p * r + 0.6931469492f;
  p = p * r + 1.0f;
  uint32_t bits;
  __builtin_memcpy(&bits, &shifted, sizeof bits);
  bits = (bits << 23) + 0x3F800000u;
  float scale;
  __builtin_memcpy(&scale, &bits, sizeof scale);
  return p * scale;
}
MOESAIC_IN_CLONE double exp2_of(double x) {
  return __builtin_exp2(x);
}

// Exact to some 1e-7 of the larger of 1 and the result, up to exp(69).
MOESAIC_IN_CLONE float exp_of(float x) {
  return exp2_of(x * 1.44269504f);
}
MOESAIC_IN_CLONE double exp_of(double x) {
  return __builtin_exp(x);
}

// erfc(x) = t P(t) exp(-x^2) with t = 1 / (1 + 0.35 x) for x >= 0; P is a least-squares fit over
// 0 <= x <= 6, relative error 1.4e-8. The standard normal distribution Phi(x) follows from it.
MOESAIC_IN_CLONE float normal_cdf(float x) {
  const float z = (x < 0 ? -x : x) * 0.70710678f;
  const float t = 1.0f / (1.0f + 0.35f * z);
  float p = 0.0653675511f;
  p = p * t - 0.390805602f;
  p = p * t + 0.808713752f;
  p = p * t - 0.684181382f;
  p = p * t + 0.610909349f;
  p = p * t - 0.0319046731f;
  p = p * t + 0.233318387f;
  p = p * t + 0.190701724f;
  p = p * t + 0.197880884f;
  const float tail = z > 8.3f ? 0.0f : 0.5f * p * t * exp_of(-z * z);  // There exp_of() ends.
  return x < 0 ? tail : 1.0f - tail;
}
MOESAIC_IN_CLONE double normal_cdf(double x) {
  return 0.5 * __builtin_erfc(-x * 0.70710678118654752);
}

MOESAIC_IN_CLONE float tanh_of(float x) {
  // Near 0 the quotient would cancel; there the odd Taylor polynomial is exact to 1e-8.
  const float q = 1.0f - 2.0f / (1.0f + exp_of(2.0f * x));
  const float s = x * x;
  const float small =
      x * (1.0f + s * (-1.0f / 3 + s * (2.0f / 15 + s * (-17.0f / 315 + s * (62.0f / 2835)))));
  return s < 0.0625f ? small : q;
}
MOESAIC_IN_CLONE double tanh_of(double x) {
  return __builtin_tanh(x);
}

// Each activation gives value(x) and slope(x) in the type S.
template <class S>
struct Relu {
  MOESAIC_IN_CLONE static S value(S x) { return x < 0 ? S(0) : x; }  // NaN stays
  MOESAIC_IN_CLONE static S slope(S x) { return x <= 0 ? S(0) : S(1); }
};

// x / 2 (1 + tanh(c (x + a x^3))) = x sigmoid(2 c (x + a x^3)), c = sqrt(2 / pi), a = 0.044715.
template <class S>
struct GeluTanh {
  MOESAIC_IN_CLONE static S gate(S x) {
    // exp(-2 c (x + a x^3)) as a power of 2.
    const S power = x * (S(-2.302208198144325) + S(-0.1029432395800235) * x * x);
    const S g = S(1) / (S(1) + exp2_of(power));
    return power < kMaxPower ? g : S(0);
  }
  MOESAIC_IN_CLONE static S value(S x) { return x * gate(x); }
  MOESAIC_IN_CLONE static S slope(S x) {
    const S near = x < S(-16) ? S(-16) : x > S(16) ? S(16) : x;  // Beyond, g (1 - g) is 0.
    const S dz = S(1.5957691216057308) * (S(1) + S(3 * 0.044715) * near * near);
    const S g = gate(x);
    return g + near * g * (S(1) - g) * dz;
  }
};

template <class S>
struct GeluErf {
  MOESAIC_IN_CLONE static S value(S x) { return x * normal_cdf(x); }
  MOESAIC_IN_CLONE static S slope(S x) {
    const S power = S(-0.5) * x * x, density = S(0.3989422804014327) * exp_of(power);
    return normal_cdf(x) + x * (power > S(-69) ? density : S(0));
  }
};

template <class S>
struct Cubic {
  MOESAIC_IN_CLONE static S value(S x) { return x * x * x; }
  MOESAIC_IN_CLONE static S slope(S x) { return S(3) * x * x; }
};

template <class S>
struct Identity {
  MOESAIC_IN_CLONE static S value(S x) { return x; }
  MOESAIC_IN_CLONE static S slope(S) { return S(1); }
};

template <class S>
struct Celu {
  MOESAIC_IN_CLONE static S value(S x) { return x > 0 ? x : exp_of(x) - S(1); }
  MOESAIC_IN_CLONE static S slope(S x) { return x > 0 ? S(1) : exp_of(x); }
};

template <class S>
struct Tanh {
  MOESAIC_IN_CLONE static S value(S x) { return tanh_of(x); }
  MOESAIC_IN_CLONE static S slope(S x) {
    const S y = tanh_of(x);
    return S(1) - y * y;
  }
};

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
  e.before != nullptr ? finish_rows<Function, Scalar, true>(e)
                      : finish_rows<Function, Scalar, false>(e);
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
  e.active != nullptr ? finish_backward_rows<Function, Scalar, true>(e)
                      : finish_backward_rows<Function, Scalar, false>(e);
}

/// Calls use(the activation's functions) for numbers of type S.
template <class S>
MOESAIC_IN_CLONE void with(Activation activation, auto use) {
  switch (activation) {
    case Activation::relu:
      return use(Relu<S>{});
    case Activation::gelu_tanh:
      return use(GeluTanh<S>{});
    case Activation::gelu:
      return use(GeluErf<S>{});
    case Activation::cubic:
      return use(Cubic<S>{});
    case Activation::identity:
      return use(Identity<S>{});
    case Activation::celu:
      return use(Celu<S>{});
    case Activation::tanh:
      return use(Tanh<S>{});
  }
}

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

#define MOESAIC_FINISH(Scalar)                                                                  \
  MOESAIC_VECTOR_CLONES void finish(const Epilogue<Scalar>& e) {                                \
    with<SumOf<Scalar>>(e.activation,                                                           \
                        [&](auto f) MOESAIC_IN_LAMBDA { finish_as<decltype(f)>(e); });          \
  }                                                                                             \
  MOESAIC_VECTOR_CLONES void finish_backward(const BackwardEpilogue<Scalar>& e) {               \
    with<SumOf<Scalar>>(e.activation,                                                           \
                        [&](auto f) MOESAIC_IN_LAMBDA { finish_backward_as<decltype(f)>(e); }); \
  }
#define MOESAIC_IN_LAMBDA __attribute__((always_inline))
MOESAIC_FINISH(float)
MOESAIC_FINISH(double)
MOESAIC_FINISH(c10::BFloat16)
MOESAIC_FINISH(c10::Half)
#undef MOESAIC_IN_LAMBDA
#undef MOESAIC_FINISH

MOESAIC_VECTOR_CLONES void round_rows(const float* sums, int64_t rows, int64_t columns,
                                      int64_t stride, c10::BFloat16* to, int64_t to_stride) {
  narrow_rows(sums, rows, columns, stride, to, to_stride);
}
MOESAIC_VECTOR_CLONES void round_rows(const float* sums, int64_t rows, int64_t columns,
                                      int64_t stride, c10::Half* to, int64_t to_stride) {
  narrow_rows(sums, rows, columns, stride, to, to_stride);
}

}  // namespace moesaic::ops
