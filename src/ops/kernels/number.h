// SPDX-License-Identifier: Apache-2.0
// Element types in memory, the types of their sums, and vectors of 16 bytes.
#pragma once

#include <cmath>
#include <cstring>

#include "block.h"

#if defined(__CUDACC__)
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#else
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>
#endif

namespace moesaic::ops::kernels {

/// A bfloat16 in its memory format.
struct BFloat16 {
  uint16_t bits;
};

/// A float16 in its memory format.
struct Half {
  uint16_t bits;
};

MOESAIC_INLINE float widen(BFloat16 value) {
  const uint32_t bits = static_cast<uint32_t>(value.bits) << 16;
  float wide;
  std::memcpy(&wide, &bits, sizeof wide);
  return wide;
}
MOESAIC_INLINE float widen(Half value) {
#if defined(__CUDACC__)
  return __half2float(__ushort_as_half(value.bits));
#else
  return c10::Half(value.bits, c10::Half::from_bits());
#endif
}
MOESAIC_INLINE float widen(float value) {
  return value;
}
MOESAIC_INLINE double widen(double value) {
  return value;
}

/// Type in which numbers of type T are summed; sums are rounded to the nearest T, ties to even.
template <class T>
struct Number {
  using Sum = T;
  static MOESAIC_INLINE T narrow(T value) { return value; }
};
template <>
struct Number<BFloat16> {
  using Sum = float;
  static MOESAIC_INLINE BFloat16 narrow(float value) {
#if defined(__CUDACC__)
    return {__bfloat16_as_ushort(__float2bfloat16_rn(value))};
#else
    return {c10::BFloat16(value).x};
#endif
  }
};
template <>
struct Number<Half> {
  using Sum = float;
  static MOESAIC_INLINE Half narrow(float value) {
#if defined(__CUDACC__)
    return {__half_as_ushort(__float2half_rn(value))};
#else
    return {c10::Half(value).x};
#endif
  }
};
template <class T>
using Sum = typename Number<T>::Sum;

/// Vector of `Count` neighbours that one memory access reads or writes.
template <class T, int Count>
struct alignas(sizeof(T) * Count) Piece {
  T at[Count];
};

/// Number of elements in 16 bytes.
template <class T>
constexpr int kWide = static_cast<int>(16 / sizeof(T));

template <class T, int Count>
MOESAIC_INLINE Piece<T, Count> read(const T* from) {
  return *reinterpret_cast<const Piece<T, Count>*>(from);
}
template <class T, int Count>
MOESAIC_INLINE void write(T* to, const Piece<T, Count>& piece) {
#if defined(__CUDA_ARCH__)
  if constexpr (sizeof piece == sizeof(uint4)) {
    // nvcc 13 splits the assignment of a struct into stores of 4 bytes.
    uint4 words;
    memcpy(&words, &piece, sizeof words);
    __stwb(reinterpret_cast<uint4*>(to), words);
    return;
  }
#endif
  *reinterpret_cast<Piece<T, Count>*>(to) = piece;
}
template <class T, int Count>
MOESAIC_INLINE void write_zeros(T* to) {
  Piece<T, Count> zeros = {};
  write<T, Count>(to, zeros);
}

template <class T>
MOESAIC_INLINE T infinity() {
  return static_cast<T>(HUGE_VAL);
}
template <class T>
MOESAIC_INLINE T not_a_number() {
  return static_cast<T>(NAN);
}
template <class T>
MOESAIC_INLINE bool is_finite(T x) {
  return x - x == T(0);
}

}  // namespace moesaic::ops::kernels
