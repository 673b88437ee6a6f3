// SPDX-License-Identifier: Apache-2.0
#include "fma_rate.h"

namespace moesaic::bench {
namespace {

#if defined(__x86_64__)
#define MOESAIC_IN_REGISTER "+x"
#else
#define MOESAIC_IN_REGISTER "+w"
#endif

constexpr int kSums = 12;  // Independent ones: as many as hide the latency of two units.

template <int lanes>
inline __attribute__((always_inline)) double loop_in_registers(int64_t rounds) {
  using Vector __attribute__((vector_size(4 * lanes))) = float;
  Vector sum[kSums];
#pragma GCC unroll 16
  for (int i = 0; i < kSums; ++i) sum[i] = Vector{} + static_cast<float>(i);
  const Vector factor = Vector{} + 0.999F, term = Vector{} + 0.001F;
  for (int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 16
    for (int i = 0; i < kSums; ++i) sum[i] = sum[i] * factor + term;
      // Nothing is left out or computed beforehand.
#pragma GCC unroll 16
    for (int i = 0; i < kSums; ++i) asm volatile("" : MOESAIC_IN_REGISTER(sum[i]));
  }
  return 2.0 * lanes * kSums * static_cast<double>(rounds);
}

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
__attribute__((target("arch=x86-64-v4"))) double of_16(int64_t rounds) {
  return loop_in_registers<16>(rounds);
}
__attribute__((target("arch=x86-64-v3"))) double of_8(int64_t rounds) {
  return loop_in_registers<8>(rounds);
}
#endif

}  // namespace

double multiply_add(int64_t rounds) {
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
  if (__builtin_cpu_supports("x86-64-v4")) return of_16(rounds);
  if (__builtin_cpu_supports("x86-64-v3")) return of_8(rounds);
#endif
  return loop_in_registers<4>(rounds);
}

}  // namespace moesaic::bench
