// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "launch.h"
#include "start.h"

namespace moesaic::ops::kernels {

template <int Threads, class Kernel>
void start(const Kernel& kernel, int64_t blocks, int threads, int64_t shared_bytes,
           cudaStream_t stream) {
  launch<Threads>(kernel, blocks, threads, shared_bytes, stream);
}

// The macro is variadic because names of kernels contain commas.
#define MOESAIC_START(threads, ...)                                                    \
  template void start<threads, __VA_ARGS__>(const __VA_ARGS__&, int64_t, int, int64_t, \
                                            cudaStream_t);

}  // namespace moesaic::ops::kernels
