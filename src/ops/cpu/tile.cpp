// SPDX-License-Identifier: Apache-2.0
#include "tile.h"

#include <cstdlib>
#include <string_view>

namespace moesaic::ops {
namespace {

std::string_view max_allowed() {
  const char* asked = std::getenv("MOESAIC_CPU");
  return asked != nullptr ? asked : "avx512";
}

#if defined(__x86_64__)
bool has_avx512() {
  return max_allowed() == "avx512" && __builtin_cpu_supports("avx512f") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512bw");
}
bool has_avx2() {
  return max_allowed() != "generic" && __builtin_cpu_supports("avx2") &&
         __builtin_cpu_supports("fma");
}
#endif

template <class Scalar>
const TileKernels<Scalar>& choose() {
#if defined(__x86_64__)
  if (has_avx512()) return *tile_kernels_avx512<Scalar>();
  if (has_avx2()) return *tile_kernels_avx2<Scalar>();
#endif
  return *tile_kernels_generic<Scalar>();
}

}  // namespace

template <>
const TileKernels<float>& tile_kernels<float>() {
  static const TileKernels<float>& best = choose<float>();
  return best;
}

template <>
const TileKernels<double>& tile_kernels<double>() {
  static const TileKernels<double>& best = choose<double>();
  return best;
}

}  // namespace moesaic::ops
