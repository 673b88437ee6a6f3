// SPDX-License-Identifier: Apache-2.0
#include "tensor_map.h"

#include <cuda_runtime.h>

namespace moesaic::ops::kernels::hopper {
namespace {

using Encode = decltype(&cuTensorMapEncodeTiled);

Encode find_encode() {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
  constexpr unsigned kSince = 12000;
  const cudaError_t error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found,
                                                             kSince, cudaEnableDefault, &result);
#else
  const cudaError_t error =
      cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &found, cudaEnableDefault, &result);
#endif
  if (error != cudaSuccess) {
    cudaGetLastError();  // a driver without it is no error of the next launch
    return nullptr;
  }
  return result == cudaDriverEntryPointSuccess ? reinterpret_cast<Encode>(found) : nullptr;
}

Encode encode_function() {
  static const Encode found = find_encode();
  return found;
}

}  // namespace

bool has_tensor_maps() {
  return encode_function() != nullptr;
}

bool encode(const BoxSource& source, CUtensorMap* map) {
  if (!has_tensor_maps()) return false;
  constexpr cuuint32_t kEvery[3] = {1, 1, 1};
  return encode_function()(
             map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, static_cast<cuuint32_t>(source.rank),
             const_cast<void*>(source.data), source.size, source.stride_bytes, source.box, kEvery,
             CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

}  // namespace moesaic::ops::kernels::hopper
