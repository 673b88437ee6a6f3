// SPDX-License-Identifier: Apache-2.0
// Kernels that the program registered, and the check of their launches.
#pragma once

#include <cuda_runtime_api.h>

#include "state.h"

namespace fake_gpu {

struct Function {
  std::string name;  ///< As the compiler mangled it.
  int max_threads = kThreads;
  int max_shared_bytes = kSharedBytes;
  uint64_t launches = 0;
  uint64_t widest_grid = 0, widest_block = 0, widest_shared = 0;
};

/// Adds a kernel; `key` is what launches name it by.
Function& add_function(const void* key, const char* mangled_name);
cudaError_t allow_shared_bytes(const void* key, int bytes);
cudaError_t launch(const void* key, dim3 grid, dim3 block, size_t shared_bytes,
                   cudaStream_t stream);

}  // namespace fake_gpu
