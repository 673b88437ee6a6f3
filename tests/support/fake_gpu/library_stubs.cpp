// SPDX-License-Identifier: Apache-2.0
// Calls of cuBLAS whose arguments do not matter. They are declared without them, which the calling
// convention of x86-64 and AArch64 allows, so this file includes none of its headers.
#include "state.h"

#define FAKE_GPU_SUCCEED(name) \
  int name() {                 \
    return 0;                  \
  }
#define FAKE_GPU_PRODUCT(name)                        \
  int name() {                                        \
    fake_gpu::count(&FakeGpuCounts::products, #name); \
    return 0;                                         \
  }

extern "C" {

FAKE_GPU_SUCCEED(cublasSetPointerMode_v2)
FAKE_GPU_SUCCEED(cublasSetStream_v2)
FAKE_GPU_SUCCEED(cublasSetWorkspace_v2)
FAKE_GPU_SUCCEED(cublasLtMatmulDescSetAttribute)
FAKE_GPU_SUCCEED(cublasLtMatmulPreferenceSetAttribute)
FAKE_GPU_SUCCEED(cublasLtMatrixLayoutSetAttribute)

// Vectors and float64 have no TF32.
FAKE_GPU_PRODUCT(cublasDgemm_v2)
FAKE_GPU_PRODUCT(cublasDgemmStridedBatched)
FAKE_GPU_PRODUCT(cublasSgemv_v2)
FAKE_GPU_PRODUCT(cublasDgemv_v2)
FAKE_GPU_PRODUCT(cublasSdot_v2)
FAKE_GPU_PRODUCT(cublasDdot_v2)
FAKE_GPU_PRODUCT(cublasDotEx)

}  // extern "C"
