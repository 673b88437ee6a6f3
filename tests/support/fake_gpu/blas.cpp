// SPDX-License-Identifier: Apache-2.0
// Matrix products of cuBLAS and cuBLASLt: counted, and among them those that may round float32 to
// TF32, which the handle's mode or the product's own type of computation allows.
#include <cublasLt.h>
#include <cublas_v2.h>

#include <atomic>

#include "state.h"

namespace {

std::atomic<cublasMath_t>& mode_of(cublasHandle_t handle) {
  return *reinterpret_cast<std::atomic<cublasMath_t>*>(handle);
}

cublasStatus_t multiply(bool tf32, const char* call) {
  fake_gpu::count(&FakeGpuCounts::products, call);
  if (tf32) fake_gpu::count(&FakeGpuCounts::tf32_products, "  may round to TF32");
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t multiply_floats(cublasHandle_t handle, const char* call) {
  return multiply(mode_of(handle) == CUBLAS_TF32_TENSOR_OP_MATH, call);
}
cublasStatus_t multiply_typed(cublasHandle_t handle, cudaDataType type, cublasComputeType_t compute,
                              const char* call) {
  const bool allowed =
      mode_of(handle) == CUBLAS_TF32_TENSOR_OP_MATH || compute == CUBLAS_COMPUTE_32F_FAST_TF32;
  return multiply(type == CUDA_R_32F && allowed, call);
}

// cuBLASLt's descriptions begin with the one value that counts here.
cublasComputeType_t& compute_of(cublasLtMatmulDesc_t product) {
  return *reinterpret_cast<cublasComputeType_t*>(product->data);
}
cudaDataType& type_of(cublasLtMatrixLayout_t matrix) {
  return *reinterpret_cast<cudaDataType*>(matrix->data);
}

}  // namespace

extern "C" {

cublasStatus_t cublasCreate_v2(cublasHandle_t* handle) {
  *handle = reinterpret_cast<cublasHandle_t>(new std::atomic<cublasMath_t>(CUBLAS_DEFAULT_MATH));
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasDestroy_v2(cublasHandle_t handle) {
  delete &mode_of(handle);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetMathMode(cublasHandle_t handle, cublasMath_t mode) {
  mode_of(handle) = mode;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasGetMathMode(cublasHandle_t handle, cublasMath_t* mode) {
  *mode = mode_of(handle);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSgemm_v2(cublasHandle_t handle, cublasOperation_t, cublasOperation_t, int, int,
                              int, const float*, const float*, int, const float*, int, const float*,
                              float*, int) {
  return multiply_floats(handle, "cublasSgemm");
}
cublasStatus_t cublasSgemmStridedBatched(cublasHandle_t handle, cublasOperation_t,
                                         cublasOperation_t, int, int, int, const float*,
                                         const float*, int, long long, const float*, int, long long,
                                         const float*, float*, int, long long, int) {
  return multiply_floats(handle, "cublasSgemmStridedBatched");
}
cublasStatus_t cublasSgemmEx(cublasHandle_t handle, cublasOperation_t, cublasOperation_t, int, int,
                             int, const float*, const void*, cudaDataType type, int, const void*,
                             cudaDataType, int, const float*, void*, cudaDataType, int) {
  return multiply_typed(handle, type, CUBLAS_COMPUTE_32F, "cublasSgemmEx");
}
cublasStatus_t cublasGemmEx(cublasHandle_t handle, cublasOperation_t, cublasOperation_t, int, int,
                            int, const void*, const void*, cudaDataType type, int, const void*,
                            cudaDataType, int, const void*, void*, cudaDataType, int,
                            cublasComputeType_t compute, cublasGemmAlgo_t) {
  return multiply_typed(handle, type, compute, "cublasGemmEx");
}
cublasStatus_t cublasGemmStridedBatchedEx(cublasHandle_t handle, cublasOperation_t,
                                          cublasOperation_t, int, int, int, const void*,
                                          const void*, cudaDataType type, int, long long,
                                          const void*, cudaDataType, int, long long, const void*,
                                          void*, cudaDataType, int, long long, int,
                                          cublasComputeType_t compute, cublasGemmAlgo_t) {
  return multiply_typed(handle, type, compute, "cublasGemmStridedBatchedEx");
}

size_t cublasLtGetVersion() {
  return CUBLAS_VERSION;
}
cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* product, cublasComputeType_t compute,
                                        cudaDataType) {
  *product = new cublasLtMatmulDescOpaque_t{};
  compute_of(*product) = compute;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t product) {
  delete product;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* matrix, cudaDataType type,
                                          uint64_t, uint64_t, int64_t) {
  *matrix = new cublasLtMatrixLayoutOpaque_t{};
  type_of(*matrix) = type;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t matrix) {
  delete matrix;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  *preference = new cublasLtMatmulPreferenceOpaque_t{};
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  delete preference;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                              cublasLtMatmulPreference_t, int,
                                              cublasLtMatmulHeuristicResult_t* results,
                                              int* count) {
  results[0] = {};
  *count = 1;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t product, const void*,
                              const void*, cublasLtMatrixLayout_t matrix, const void*,
                              cublasLtMatrixLayout_t, const void*, const void*,
                              cublasLtMatrixLayout_t, void*, cublasLtMatrixLayout_t,
                              const cublasLtMatmulAlgo_t*, void*, size_t, cudaStream_t) {
  const bool fast = compute_of(product) == CUBLAS_COMPUTE_32F_FAST_TF32;
  return multiply(type_of(matrix) == CUDA_R_32F && fast, "cublasLtMatmul");
}

}  // extern "C"
