// SPDX-License-Identifier: Apache-2.0
// Starts a kernel of kernels/block.h on a GPU. Only .cu files include this header.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "../kernels/block.h"

namespace moesaic::ops::kernels {

/// Runs a kernel. A block has at most `Threads` threads, and a multiprocessor should hold `Blocks`
/// blocks at once, which tells the compiler how many registers a thread may use.
template <int Threads, int Blocks, class Kernel>
__global__ void __launch_bounds__(Threads, Blocks) run(const __grid_constant__ Kernel kernel) {
  extern __shared__ __align__(16) char shared[];
  DeviceBlock block(shared);
  kernel(block);
}

/// Starts a kernel; the callers check cudaGetLastError() for errors of the launch.
template <int Threads, int Blocks = 1, class Kernel>
void launch(const Kernel& kernel, int64_t blocks, int threads, int64_t shared_bytes,
            cudaStream_t stream) {
  if (blocks <= 0) return;
  constexpr int64_t kWithoutAsking = 48 * 1024;
  if (shared_bytes > kWithoutAsking) {
    cudaFuncSetAttribute(run<Threads, Blocks, Kernel>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                         static_cast<int>(shared_bytes));
  }
  run<Threads, Blocks, Kernel><<<static_cast<unsigned>(blocks), static_cast<unsigned>(threads),
                                 static_cast<size_t>(shared_bytes), stream>>>(kernel);
}

}  // namespace moesaic::ops::kernels
