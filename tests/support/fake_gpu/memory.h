// SPDX-License-Identifier: Apache-2.0
// Memory of the fake GPU: addresses that nobody may touch, which read as zeros when copied to the
// host.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

namespace fake_gpu {

enum class Place { device, pinned, pageable };

void* allocate(size_t bytes, Place place);
cudaError_t release(void* pointer);
/// Says where `bytes` from a pointer on lie; refuses those that end past their allocation.
Place place_of(const void* pointer, size_t bytes = 0);
/// Makes memory of the host pinned, or pageable again.
void pin(void* pointer, size_t bytes);
void unpin(void* pointer);

}  // namespace fake_gpu
