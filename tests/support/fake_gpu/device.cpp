// SPDX-License-Identifier: Apache-2.0
// The one device and its properties, versions and errors.
#include <cstdio>
#include <cstring>

#include "state.h"

namespace {

constexpr int kMajor = 9, kWarp = 32, kThreadsOfMultiprocessor = 2048;

}  // namespace

extern "C" {

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int) {
  *p = {};
  std::strcpy(p->name, "fake H100");
  p->totalGlobalMem = size_t{80} << 30;
  p->major = kMajor;
  p->warpSize = kWarp;
  p->multiProcessorCount = fake_gpu::kMultiprocessors;
  p->maxThreadsPerBlock = p->maxThreadsDim[0] = p->maxThreadsDim[1] = fake_gpu::kThreads;
  p->maxThreadsDim[2] = 64;
  p->maxThreadsPerMultiProcessor = kThreadsOfMultiprocessor;
  p->maxBlocksPerMultiProcessor = 32;
  p->maxGridSize[0] = 2147483647;
  p->maxGridSize[1] = p->maxGridSize[2] = 65535;
  p->regsPerBlock = p->regsPerMultiprocessor = 65536;
  p->sharedMemPerBlock = fake_gpu::kSharedBytes;
  p->sharedMemPerBlockOptin = fake_gpu::kSharedBytesOnRequest;
  p->sharedMemPerMultiprocessor = fake_gpu::kSharedBytesOnRequest + 1024;
  p->l2CacheSize = 50 << 20;
  p->memoryBusWidth = 5120;
  p->asyncEngineCount = 3;
  p->textureAlignment = 512;
  p->unifiedAddressing = p->concurrentKernels = p->cooperativeLaunch = 1;
  p->canMapHostMemory = p->memoryPoolsSupported = 1;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  switch (attribute) {
    case cudaDevAttrComputeCapabilityMajor:
      *value = kMajor;
      break;
    case cudaDevAttrComputeCapabilityMinor:
      *value = 0;
      break;
    case cudaDevAttrMultiProcessorCount:
      *value = fake_gpu::kMultiprocessors;
      break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = fake_gpu::kSharedBytesOnRequest;
      break;
    case cudaDevAttrMaxSharedMemoryPerBlock:
      *value = fake_gpu::kSharedBytes;
      break;
    case cudaDevAttrMaxThreadsPerBlock:
      *value = fake_gpu::kThreads;
      break;
    case cudaDevAttrMaxThreadsPerMultiProcessor:
      *value = kThreadsOfMultiprocessor;
      break;
    case cudaDevAttrWarpSize:
      *value = kWarp;
      break;
    default:
      *value = 1;
  }
  return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char* id, int length, int) {
  std::snprintf(id, static_cast<size_t>(length), "0000:00:00.0");
  return cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}

cudaError_t cudaGetLastError() {
  const cudaError_t error = fake_gpu::last_error();
  fake_gpu::last_error() = cudaSuccess;
  return error;
}
cudaError_t cudaPeekAtLastError() {
  return fake_gpu::last_error();
}
const char* cudaGetErrorName(cudaError_t error) {
  return error == cudaSuccess ? "cudaSuccess" : "cudaErrorOfFakeGpu";
}
const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "no error";
    case cudaErrorInvalidConfiguration:
      return "invalid configuration argument";
    case cudaErrorInvalidDeviceFunction:
      return "invalid device function";
    case cudaErrorInvalidValue:
      return "invalid argument";
    case cudaErrorStreamCaptureUnsupported:
      return "operation not permitted when stream is capturing";
    case cudaErrorStreamCaptureImplicit:
      return "operation would make the legacy stream depend on a capturing blocking stream";
    default:
      return "an error of the fake GPU";
  }
}

}  // extern "C"
