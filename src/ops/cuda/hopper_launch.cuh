// SPDX-License-Identifier: Apache-2.0
// Starts a product of hopper.cuh; each kind is compiled in a file of its own.
#pragma once

#include <type_traits>

#include "hopper.cuh"
#include "hopper_product.h"
#include "tensor_map.h"

namespace moesaic::ops::kernels::hopper {

/// As many blocks as there are multiprocessors, or tiles if these are fewer: nothing of it depends
/// on where experts' rows begin.
template <class Product>
bool launch_product(const Product& product, const BFloat16* a, const BFloat16* b,
                    cudaStream_t stream) {
  CUtensorMap map_a, map_b;
  if (!encode(product.source_a(a), &map_a) || !encode(product.source_b(b), &map_b)) return false;
  int device = 0, multiprocessors = 0;
  if (cudaGetDevice(&device) != cudaSuccess ||
      cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device) !=
          cudaSuccess) {
    return false;
  }
  const int64_t blocks = min<int64_t>(product.tiles(), multiprocessors);
  if (blocks <= 0) return true;
  constexpr int kBytes = SharedLayout<Product>::kBytes;
  cudaFuncSetAttribute(multiply<Product>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  multiply<Product>
      <<<static_cast<unsigned>(blocks), kThreads, kBytes, stream>>>(product, map_a, map_b);
  return true;
}

/// Calls body(integral_constant) with the sharing that wastes fewer columns, else with the one that
/// reads less.
template <class Body>
bool with_sharing(int64_t columns, const Body& body) {
  const auto padded = [&](int64_t width) { return divide_up(columns, width) * width; };
  if (padded(TileShare<Sharing::together>::kColumns) >
      padded(TileShare<Sharing::in_turns>::kColumns)) {
    return body(std::integral_constant<Sharing, Sharing::in_turns>());
  }
  return body(std::integral_constant<Sharing, Sharing::together>());
}

}  // namespace moesaic::ops::kernels::hopper
