// SPDX-License-Identifier: Apache-2.0
// Starts a kernel of ops/kernels from a file that nvcc does not compile. Every use needs its
// instantiation in a .cu file.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace moesaic::ops::kernels {

/// Starts `blocks` blocks of `threads` threads, at most `Threads`, on the stream.
template <int Threads, class Kernel>
void start(const Kernel& kernel, int64_t blocks, int threads, int64_t shared_bytes,
           cudaStream_t stream);

}  // namespace moesaic::ops::kernels
