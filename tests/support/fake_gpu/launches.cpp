// SPDX-License-Identifier: Apache-2.0
// Registration and launch of kernels, by the calls that nvcc's host code makes.
#include <cstring>
#include <vector>

#include "functions.h"

namespace fake_gpu {
namespace {

struct Configuration {
  dim3 grid, block;
  size_t shared_bytes;
  void* stream;
};

/// What `<<<...>>>` leaves for the call that follows.
std::vector<Configuration>& configurations() {
  thread_local std::vector<Configuration> stack;
  return stack;
}

}  // namespace
}  // namespace fake_gpu

extern "C" {

void** __cudaRegisterFatBinary(void*) {
  static void* handle = nullptr;
  return &handle;
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
char __cudaInitModule(void**) {
  return 1;
}
void __cudaRegisterVar(void**, char*, char*, const char*, int, size_t, int, int) {}
void __cudaRegisterFunction(void**, const char* key, char*, const char* name, int, uint3*, uint3*,
                            dim3*, dim3*, int*) {
  fake_gpu::add_function(key, name);
}

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared_bytes, void* stream) {
  fake_gpu::configurations().push_back({grid, block, shared_bytes, stream});
  return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared_bytes,
                                       void* stream) {
  const fake_gpu::Configuration top = fake_gpu::configurations().back();
  fake_gpu::configurations().pop_back();
  *grid = top.grid;
  *block = top.block;
  *shared_bytes = top.shared_bytes;
  std::memcpy(stream, &top.stream, sizeof top.stream);
  return cudaSuccess;
}

cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* key) {
  *kernel = reinterpret_cast<cudaKernel_t>(const_cast<void*>(key));
  return cudaSuccess;
}
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void**,
                               size_t shared_bytes, cudaStream_t stream) {
  return fake_gpu::launch(kernel, grid, block, shared_bytes, stream);
}
cudaError_t cudaLaunchKernel(const void* key, dim3 grid, dim3 block, void**, size_t shared_bytes,
                             cudaStream_t stream) {
  return fake_gpu::launch(key, grid, block, shared_bytes, stream);
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* key, void**) {
  return fake_gpu::launch(key, config->gridDim, config->blockDim, config->dynamicSmemBytes,
                          config->stream);
}

cudaError_t cudaFuncSetAttribute(const void* key, cudaFuncAttribute attribute, int value) {
  if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaSuccess;
  return fake_gpu::allow_shared_bytes(key, value);
}
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void*) {
  *attributes = {};
  attributes->binaryVersion = attributes->ptxVersion = 90;
  attributes->maxThreadsPerBlock = fake_gpu::kThreads;
  attributes->numRegs = 64;
  attributes->maxDynamicSharedSizeBytes = fake_gpu::kSharedBytes;
  return cudaSuccess;
}

}  // extern "C"
