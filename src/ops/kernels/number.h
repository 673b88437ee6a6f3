// SPDX-License-Identifier: Apache-2.0
// Element types in memory, the types of their sums, and vectors of 16 bytes.
#pragma once

#include <cmath>
#include <cstring>

#include "block.h"

#if defined(__CUDACC__)
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#endif

namespace moesaic::ops::kernels {

MOESAIC_INLINE float float_of_bits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}
MOESAIC_INLINE uint32_t bits_of(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

/// A bfloat16 in its memory format.
struct BFloat16 {
  uint16_t bits;
};

MOESAIC_INLINE float widen(BFloat16 value) {
  return float_of_bits(static_cast<uint32_t>(value.bits) << 16);
}
MOESAIC_INLINE float widen(float value) {
  return value;
}
MOESAIC_INLINE double widen(double value) {
  return value;
}

/// Rounds to the nearest bfloat16, ties to even.
MOESAIC_INLINE BFloat16 to_bfloat16(float value) {
  BFloat16 out;
#if defined(__CUDA_ARCH__)
  out.bits = __bfloat16_as_ushort(__float2bfloat16_rn(value));
#else
  const uint32_t bits = bits_of(value);
  const uint32_t rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
  out.bits = static_cast<uint16_t>(value != value ? 0x7FC0u : rounded);
#endif
  return out;
}

/// A float16 in its memory format.
struct Half {
  uint16_t bits;
};

MOESAIC_INLINE float widen(Half value) {
#if defined(__CUDA_ARCH__)
  return __half2float(__ushort_as_half(value.bits));
#else
  const uint32_t sign = (value.bits & 0x8000u) << 16, rest = value.bits & 0x7FFFu;
  // Shifted into place, the exponent lacks the difference of the biases, 2^112.
  const float scaled = float_of_bits(rest << 13) * 0x1p112f;
  return float_of_bits(sign | (rest >= 0x7C00u ? 0x7F800000u | rest << 13 : bits_of(scaled)));
#endif
}

/// Rounds to the nearest float16, ties to even.
MOESAIC_INLINE Half to_half(float value) {
  Half out;
#if defined(__CUDA_ARCH__)
  out.bits = __half_as_ushort(__float2half_rn(value));
#else
  const uint32_t sign = bits_of(value) >> 16 & 0x8000u, rest = bits_of(value) & 0x7FFFFFFFu;
  uint32_t found = (rest + 0xFFFu + (rest >> 13 & 1u)) >> 13;
  found = found < 0x23C00u ? found - 0x1C000u : 0x7C00u;  // From 65520 on: infinity.
  if (rest < 0x38800000u) {  // Below 2^-14, steps are 2^-24: the sum rounds to them.
    found = bits_of(float_of_bits(rest) + 0.5f) - bits_of(0.5f);
  }
  out.bits = static_cast<uint16_t>(sign | (value != value ? 0x7E00u : found));
#endif
  return out;
}

/// Type in which numbers of type T are summed, with conversions.
template <class T>
struct Number {
  using Sum = T;
  static MOESAIC_INLINE T narrow(T value) { return value; }
};
template <>
struct Number<BFloat16> {
  using Sum = float;
  static MOESAIC_INLINE BFloat16 narrow(float value) { return to_bfloat16(value); }
};
template <>
struct Number<Half> {
  using Sum = float;
  static MOESAIC_INLINE Half narrow(float value) { return to_half(value); }
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
  return static_cast<T>(float_of_bits(0x7FC00000u));
}
template <class T>
MOESAIC_INLINE bool is_finite(T x) {
  return x - x == T(0);
}

}  // namespace moesaic::ops::kernels
