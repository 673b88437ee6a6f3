// SPDX-License-Identifier: Apache-2.0
#define MOESAIC_TILE_NAME "generic"
#define MOESAIC_VECTOR_BYTES 16
#define MOESAIC_TILE_ROWS 6
#include "tile_kernels.h"

namespace moesaic::ops {

template <>
const TileKernels<float>* tile_kernels_generic<float>() {
  return &kTable<float>;
}
template <>
const TileKernels<double>* tile_kernels_generic<double>() {
  return &kTable<double>;
}

}  // namespace moesaic::ops
