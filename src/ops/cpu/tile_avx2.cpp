// SPDX-License-Identifier: Apache-2.0
#define MOESAIC_TILE_NAME "avx2"
#define MOESAIC_VECTOR_BYTES 32
#define MOESAIC_TILE_ROWS 6
#include "tile_kernels.h"

namespace moesaic::ops {

template <>
const TileKernels<float>* tile_kernels_avx2<float>() {
  return &kTable<float>;
}
template <>
const TileKernels<double>* tile_kernels_avx2<double>() {
  return &kTable<double>;
}

}  // namespace moesaic::ops
