// SPDX-License-Identifier: Apache-2.0
// What the fake GPU (README.md) saw, for the programs that run with it. They look the functions up
// by name, so that they start without it too.
#pragma once

#include <cstdint>

extern "C" {

/// Calls since the start of the program or fake_gpu_reset().
struct FakeGpuCounts {
  uint64_t launches;          ///< Kernels that the host started, also those of a capture.
  uint64_t products;          ///< Calls of cuBLAS and cuDNN, whose kernels are not known.
  uint64_t tf32_products;     ///< Of them, those of float32 that may round their inputs.
  uint64_t replays;           ///< Launches of captured graphs.
  uint64_t waits;             ///< Times when the host waited for work of the device.
  uint64_t copies_to_host;    ///< Device to host, whether the host synchronises or not.
  uint64_t copies_to_device;  ///< Host to device.
  uint64_t allocations;       ///< Memory that the caching allocator did not have yet.
  uint64_t errors;            ///< What a GPU would have refused, or what a capture forbids.
};

void fake_gpu_counts(FakeGpuCounts* counts);
/// Begins anew, and forgets the error that the calling thread's cudaGetLastError() would return.
void fake_gpu_reset();
/// Returns what was wrong since the last reset, one line for each error; valid until the next call.
const char* fake_gpu_errors();

}  // extern "C"
