// SPDX-License-Identifier: Apache-2.0
// Starts a kernel of kernels/block.h on a GPU. Only .cu files include this header.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "../kernels/block.h"
#include "start.h"

namespace moesaic::ops::kernels {

/// Runs a kernel. A block has at most `Threads` threads, which tells the compiler how many registers
/// a thread may use.
template <int Threads, class Kernel>
__global__ void __launch_bounds__(Threads, 1) run(const __grid_constant__ Kernel kernel) {
  extern __shared__ __align__(16) char shared[];
  DeviceBlock block(shared);
  kernel(block);
}

/// The callers check cudaGetLastError() for errors of the launch.
template <int Threads, class Kernel>
void start(const Kernel& kernel, int64_t blocks, int threads, int64_t shared_bytes,
           cudaStream_t stream) {
  if (blocks <= 0) return;
  constexpr int64_t kWithoutAsking = 48 * 1024;
  if (shared_bytes > kWithoutAsking) {
    cudaFuncSetAttribute(run<Threads, Kernel>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                         static_cast<int>(shared_bytes));
  }
  run<Threads, Kernel><<<static_cast<unsigned>(blocks), static_cast<unsigned>(threads),
                         static_cast<size_t>(shared_bytes), stream>>>(kernel);
}

// The macro is variadic because names of kernels contain commas.
#define MOESAIC_START(threads, ...)                                                    \
  template void start<threads, __VA_ARGS__>(const __VA_ARGS__&, int64_t, int, int64_t, \
                                            cudaStream_t);

}  // namespace moesaic::ops::kernels
