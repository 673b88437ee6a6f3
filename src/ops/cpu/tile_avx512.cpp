// SPDX-License-Identifier: Apache-2.0
#define MOESAIC_TILE_NAME "avx512"
#define MOESAIC_VECTOR_BYTES 64
#define MOESAIC_TILE_ROWS 14
#include "tile_kernels.h"

namespace moesaic::ops {

template <>
const TileKernels<float>* tile_kernels_avx512<float>() {
  return &kTable<float>;
}
template <>
const TileKernels<double>* tile_kernels_avx512<double>() {
  return &kTable<double>;
}

}  // namespace moesaic::ops
