// SPDX-License-Identifier: Apache-2.0
// Calls whose answer is success, or one value. They are declared without the arguments that they do
// not look at, which the calling convention of x86-64 and AArch64 allows, so files of them include
// no headers that declare them.
#pragma once

#include "fake_gpu.h"

namespace fake_gpu {

void count(uint64_t FakeGpuCounts::*which, const char* call);

}  // namespace fake_gpu

#define FAKE_GPU_SUCCEED(name) \
  int name() {                 \
    return 0;                  \
  }
/// Answers by the first argument.
#define FAKE_GPU_SET(name, type, value) \
  int name(type* answer) {              \
    *answer = value;                    \
    return 0;                           \
  }
/// Answers by the second argument.
#define FAKE_GPU_SET_SECOND(name, type, value) \
  int name(void*, type* answer) {              \
    *answer = value;                           \
    return 0;                                  \
  }
#define FAKE_GPU_CREATE(name)    \
  int name(void** description) { \
    static char one;             \
    *description = &one;         \
    return 0;                    \
  }
#define FAKE_GPU_PRODUCT(name)                        \
  int name() {                                        \
    fake_gpu::count(&FakeGpuCounts::products, #name); \
    return 0;                                         \
  }
