// SPDX-License-Identifier: Apache-2.0
// Base of kernels that run on a GPU and, thread after thread, on the host. A kernel is a struct of
// arguments with
//
//   template <class Block> MOESAIC_INLINE void operator()(Block& block) const;
//
// whose work is cut into phases, `block.each(f)`: every thread runs f(thread), then all
// synchronise. Within a phase no thread may read what another writes, except by atomics on
// integers; values that a thread keeps between phases are in a `Block::Local<T>`. Tests run the
// phases in several orders of threads (tests/support/serial_device.h): equal results show that no
// barrier is missing.
//
// The .cu files include this header, so it is C++17 without LibTorch.
#pragma once

#include <cstdint>

#include "moesaic/ops/function_attributes.h"

#if defined(__CUDACC__)
#define MOESAIC_INLINE MOESAIC_HD __forceinline__
#else
#define MOESAIC_INLINE inline
#endif
#if defined(__CUDA_ARCH__)
#define MOESAIC_UNROLL _Pragma("unroll")
#define MOESAIC_UNROLL_4 _Pragma("unroll 4")
#define MOESAIC_NO_UNROLL _Pragma("unroll 1")
#else
#define MOESAIC_UNROLL
#define MOESAIC_UNROLL_4
#define MOESAIC_NO_UNROLL
#endif

namespace moesaic::ops::kernels {

/// Number of lanes of a warp.
constexpr int kWarp = 32;

// In this namespace, unqualified calls find min and max before CUDA's global ones; std::min needs a
// compiler flag on a device.
template <class T>
MOESAIC_INLINE T min(T a, T b) {
  return b < a ? b : a;
}
template <class T>
MOESAIC_INLINE T max(T a, T b) {
  return a < b ? b : a;
}
template <class T>
MOESAIC_INLINE T divide_up(T a, T b) {
  return (a + b - 1) / b;
}

MOESAIC_INLINE int count_bits(uint32_t bits) {
#if defined(__CUDA_ARCH__)
  return __popc(bits);
#else
  return __builtin_popcount(bits);
#endif
}

/// Returns a mask with the bits of the lanes before `lane`.
MOESAIC_INLINE uint32_t lanes_before(int lane) {
  return (uint32_t{1} << lane) - 1u;
}

/// Returns the number of lanes that share a row: the smallest power of two that covers `columns`,
/// at most `max_lanes`.
MOESAIC_INLINE int lanes_for(int64_t columns, int max_lanes) {
  int lanes = 1;
  while (lanes < columns && lanes < max_lanes) lanes *= 2;
  return lanes;
}

/// Returns the last of `count` ascending beginnings begin_of(i) that is at most `number`, at least
/// the first.
template <class BeginOf>
MOESAIC_INLINE int32_t last_begun(int32_t count, int64_t number, const BeginOf& begin_of) {
  int32_t low = 0, high = count;
  while (high - low > 1) {
    const int32_t middle = (low + high) / 2;
    (begin_of(middle) <= number ? low : high) = middle;
  }
  return low;
}

#if defined(__CUDACC__)
/// A thread block of a GPU.
class DeviceBlock {
 public:
  template <class T>
  struct Local {
    T value;
    MOESAIC_INLINE explicit Local(const DeviceBlock&) : value() {}
    MOESAIC_INLINE T& operator[](int) { return value; }
  };

  MOESAIC_INLINE explicit DeviceBlock(char* shared) : shared_(shared) {}

  MOESAIC_INLINE int threads() const {
#if defined(__CUDA_ARCH__)
    return static_cast<int>(blockDim.x);
#else
    return 0;
#endif
  }
  MOESAIC_INLINE int64_t index() const {
#if defined(__CUDA_ARCH__)
    return static_cast<int64_t>(blockIdx.x);
#else
    return 0;
#endif
  }
  MOESAIC_INLINE int64_t count() const {
#if defined(__CUDA_ARCH__)
    return static_cast<int64_t>(gridDim.x);
#else
    return 0;
#endif
  }

  template <class Phase>
  MOESAIC_INLINE void each([[maybe_unused]] const Phase& phase) {
#if defined(__CUDA_ARCH__)
    phase(static_cast<int>(threadIdx.x));
    __syncthreads();
#endif
  }

  /// Returns the value at `at`, which every thread reads outside a phase and may write afterwards.
  template <class T>
  MOESAIC_INLINE T broadcast(const T* at) {
    const T value = *at;
#if defined(__CUDA_ARCH__)
    __syncthreads();
#endif
    return value;
  }

  template <class T>
  MOESAIC_INLINE T* shared(int64_t byte_offset) const {
    return reinterpret_cast<T*>(shared_ + byte_offset);
  }

  MOESAIC_INLINE void atomic_add([[maybe_unused]] int32_t* to, [[maybe_unused]] int32_t value) {
#if defined(__CUDA_ARCH__)
    atomicAdd(to, value);
#endif
  }
  MOESAIC_INLINE void atomic_or([[maybe_unused]] uint32_t* to, [[maybe_unused]] uint32_t bits) {
#if defined(__CUDA_ARCH__)
    atomicOr(to, bits);
#endif
  }
  MOESAIC_INLINE void atomic_max([[maybe_unused]] int32_t* to, [[maybe_unused]] int32_t value) {
#if defined(__CUDA_ARCH__)
    atomicMax(to, value);
#endif
  }

 private:
  char* shared_;
};
#endif

}  // namespace moesaic::ops::kernels
