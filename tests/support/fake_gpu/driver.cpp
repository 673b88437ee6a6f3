// SPDX-License-Identifier: Apache-2.0
// The driver, which LibTorch asks for kernels that it compiles while the program runs and for
// descriptions of tensors.
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include "functions.h"
#include "memory.h"

namespace {

// Only ever called where success is the whole answer.
CUresult succeed() {
  return CUDA_SUCCESS;
}

CUresult driver_error(cudaError_t error) {
  return error == cudaSuccess ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

}  // namespace

extern "C" {

CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device) {
  return driver_error(  // The runtime's attributes have the driver's numbers.
      cudaDeviceGetAttribute(value, static_cast<cudaDeviceAttr>(attribute), device));
}
CUresult cuDevicePrimaryCtxGetState(CUdevice, unsigned* flags, int* active) {
  *flags = 0;
  *active = 1;
  return CUDA_SUCCESS;
}
CUresult cuPointerGetAttribute(void* value, CUpointer_attribute attribute, CUdeviceptr pointer) {
  if (attribute == CU_POINTER_ATTRIBUTE_DEVICE_POINTER) *static_cast<CUdeviceptr*>(value) = pointer;
  return CUDA_SUCCESS;
}
CUresult cuTensorMapEncodeTiled(CUtensorMap* map, CUtensorMapDataType, cuuint32_t, void*,
                                const cuuint64_t*, const cuuint64_t*, const cuuint32_t*,
                                const cuuint32_t*, CUtensorMapInterleave, CUtensorMapSwizzle,
                                CUtensorMapL2promotion, CUtensorMapFloatOOBfill) {
  *map = {};
  return CUDA_SUCCESS;
}

CUresult cuModuleLoad(CUmodule* module, const char*) {
  *module = fake_gpu::new_handle<CUmodule>();
  return CUDA_SUCCESS;
}
CUresult cuModuleLoadData(CUmodule* module, const void*) {
  return cuModuleLoad(module, nullptr);
}
CUresult cuModuleLoadDataEx(CUmodule* module, const void*, unsigned, CUjit_option*, void**) {
  return cuModuleLoad(module, nullptr);
}
CUresult cuModuleGetFunction(CUfunction* function, CUmodule, const char* name) {
  *function = fake_gpu::new_handle<CUfunction>();
  fake_gpu::add_function(*function, name);
  return CUDA_SUCCESS;
}
CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value) {
  if (attribute != CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) return CUDA_SUCCESS;
  return driver_error(fake_gpu::allow_shared_bytes(function, value));
}
CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                        unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                        CUstream stream, void**, void**) {
  return driver_error(fake_gpu::launch(function, dim3(grid_x, grid_y, grid_z),
                                       dim3(block_x, block_y, block_z), shared_bytes, stream));
}
CUresult cuLaunchCooperativeKernel(CUfunction function, unsigned grid_x, unsigned grid_y,
                                   unsigned grid_z, unsigned block_x, unsigned block_y,
                                   unsigned block_z, unsigned shared_bytes, CUstream stream,
                                   void** arguments) {
  return cuLaunchKernel(function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes,
                        stream, arguments, nullptr);
}
CUresult cuLinkCreate_v2(unsigned, CUjit_option*, void**, CUlinkState* state) {
  *state = fake_gpu::new_handle<CUlinkState>();
  return CUDA_SUCCESS;
}
CUresult cuLinkComplete(CUlinkState, void** cubin, size_t* bytes) {
  static char empty[8];
  *cubin = empty;
  *bytes = sizeof empty;
  return CUDA_SUCCESS;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned,
                                             unsigned long long,
                                             cudaDriverEntryPointQueryResult* result) {
  *function = dlsym(RTLD_DEFAULT, name);
  if (*function == nullptr) *function = reinterpret_cast<void*>(succeed);
  if (result != nullptr) *result = cudaDriverEntryPointSuccess;
  return cudaSuccess;
}

}  // extern "C"
