// SPDX-License-Identifier: Apache-2.0
#include <cstdint>

#include "stubs.h"

namespace {

constexpr int kVersion = 13000;
void* const kContext = reinterpret_cast<void*>(uintptr_t{16});

}  // namespace

extern "C" {

FAKE_GPU_SET(cudaGetDeviceCount, int, 1)
FAKE_GPU_SET(cudaGetDevice, int, 0)
FAKE_GPU_SUCCEED(cudaSetDevice)
FAKE_GPU_SET(cudaDeviceCanAccessPeer, int, 0)
FAKE_GPU_SUCCEED(cudaDeviceEnablePeerAccess)
FAKE_GPU_SET(cudaDeviceGetDefaultMemPool, void*, nullptr)
FAKE_GPU_SUCCEED(cudaMemPoolSetAttribute)
FAKE_GPU_SET(cudaDriverGetVersion, int, kVersion)
FAKE_GPU_SET(cudaRuntimeGetVersion, int, kVersion)
FAKE_GPU_SET(cudaOccupancyMaxActiveBlocksPerMultiprocessor, int, 2)
FAKE_GPU_SET(cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags, int, 2)
FAKE_GPU_SUCCEED(cudaStreamDestroy)
FAKE_GPU_SUCCEED(cudaGraphDestroy)
FAKE_GPU_SUCCEED(cudaGraphExecDestroy)
FAKE_GPU_SUCCEED(cudaGraphDebugDotPrint)

FAKE_GPU_SUCCEED(cuInit)
FAKE_GPU_SET_SECOND(cuGetErrorString, const char*, "an error of the fake GPU's driver")
FAKE_GPU_SET(cuDeviceGet, int, 0)
FAKE_GPU_SET(cuDevicePrimaryCtxRetain, void*, kContext)
FAKE_GPU_SET(cuCtxGetCurrent, void*, kContext)
FAKE_GPU_SUCCEED(cuCtxSetCurrent)
FAKE_GPU_SUCCEED(cuModuleUnload)
FAKE_GPU_SET(cuFuncGetAttribute, int, 0)
FAKE_GPU_SUCCEED(cuFuncSetCacheConfig)
FAKE_GPU_SET(cuOccupancyMaxActiveBlocksPerMultiprocessor, int, 2)
FAKE_GPU_SUCCEED(cuLinkAddData_v2)

FAKE_GPU_SET_SECOND(cublasGetPointerMode_v2, int, 0)
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
