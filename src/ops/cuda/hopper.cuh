// SPDX-License-Identifier: Apache-2.0
// The instructions of a Hopper GPU that kernels/tensor_core_product.h is written over: barriers in
// shared memory, the tensor memory accelerator (TMA), the tensor cores. Other chips' code holds
// none of it.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "../kernels/tensor_core_product.h"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define MOESAIC_HOPPER 1
#endif

namespace moesaic::ops::kernels::hopper {

#if defined(MOESAIC_HOPPER)
__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}
__device__ __forceinline__ void begin_barrier(uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void arrive_expecting(uint32_t barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ bool has_passed(uint32_t barrier, uint32_t parity) {
  uint32_t passed;
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
      "selp.u32 %0, 1, 0, p;\n"
      "}"
      : "=r"(passed)
      : "r"(barrier), "r"(parity)
      : "memory");
  return passed != 0;
}
__device__ __forceinline__ void await(uint32_t barrier, uint32_t parity) {
  while (!has_passed(barrier, parity)) {
  }
}

__device__ __forceinline__ void fetch_map(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}
template <int Rank>
__device__ __forceinline__ void copy_box(uint32_t to, const CUtensorMap* map, uint32_t barrier,
                                         int near, int far, int matrix) {
  if constexpr (Rank == 2) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
        "[%0], [%1, {%3, %4}], [%2];" ::"r"(to),
        "l"(map), "r"(barrier), "r"(near), "r"(far)
        : "memory");
  } else {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
        "[%0], [%1, {%3, %4, %5}], [%2];" ::"r"(to),
        "l"(map), "r"(barrier), "r"(near), "r"(far), "r"(matrix)
        : "memory");
  }
}

// Operands of an instruction: eight sums, and their places in the template.
#define MOESAIC_SUMS_8(i)                                                                     \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
      "+f"(d[i + 6]), "+f"(d[i + 7])
#define MOESAIC_SUMS_64                                                         \
  MOESAIC_SUMS_8(0), MOESAIC_SUMS_8(8), MOESAIC_SUMS_8(16), MOESAIC_SUMS_8(24), \
      MOESAIC_SUMS_8(32), MOESAIC_SUMS_8(40), MOESAIC_SUMS_8(48), MOESAIC_SUMS_8(56)

/// d += a b over a depth of 16, in the background.
template <bool AByRows, bool BByColumns>
__device__ __forceinline__ void multiply_64x128(float* d, uint64_t a, uint64_t b) {
  asm volatile(
      "{\n"
      ".reg .pred add;\n"
      "setp.ne.b32 add, 1, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
      "%64, %65, add, 1, 1, %66, %67;\n"
      "}"
      : MOESAIC_SUMS_64
      : "l"(a), "l"(b), "n"(AByRows ? 1 : 0), "n"(BByColumns ? 1 : 0));
}
/// The compiler moves no use of these registers across.
__device__ __forceinline__ void hold(float* d) {
  asm volatile("" : MOESAIC_SUMS_64::"memory");
}
#undef MOESAIC_SUMS_64
#undef MOESAIC_SUMS_8
#endif

constexpr int kMaxOffsets = 1024;  // that are kept in shared memory
/// A third group for the loading thread: registers pass from group to group.
constexpr int kThreads = (kGroups + 1) * kGroupThreads;
constexpr int kLoadingRegisters = 40, kMultiplyingRegisters = 232;
static_assert((kLoadingRegisters + kGroups * kMultiplyingRegisters) * kGroupThreads <= 64 * 1024,
              "a multiprocessor has that many registers");

/// What a block has in shared memory, from an address that is a multiple of kPatternBytes.
template <class Product>
struct SharedLayout {
  static constexpr int kStages = Product::Share::kStages;
  static constexpr int kBarriers = kStages * kStageBytes<Product>;
  static constexpr int kOffsets = kBarriers + 2 * kStages * 8;
  static constexpr int kBytes = kPatternBytes + kOffsets + kMaxOffsets * 4;
  static_assert(kStageBytes<Product> % kPatternBytes == 0, "the pattern begins with each stage");
  static_assert(kBytes <= 227 * 1024, "a block may have that much");
};

/// What loader and groups know of their block.
template <class Product>
struct BlockView {
  using Layout = SharedLayout<Product>;

  char* shared;
  const int32_t* expert_offsets;

  MOESAIC_INLINE int64_t block() const {
#if defined(MOESAIC_HOPPER)
    return blockIdx.x;
#else
    return 0;
#endif
  }
  MOESAIC_INLINE int64_t blocks() const {
#if defined(MOESAIC_HOPPER)
    return gridDim.x;
#else
    return 1;
#endif
  }
  MOESAIC_INLINE const int32_t* offsets() const {
    return expert_offsets;
  }

#if defined(MOESAIC_HOPPER)
  __device__ __forceinline__ uint32_t filled(int stage) const {
    return shared_address(shared) + Layout::kBarriers + static_cast<uint32_t>(stage) * 8;
  }
  __device__ __forceinline__ uint32_t free(int stage) const {
    return filled(stage) + Layout::kStages * 8;
  }
#endif
};

/// The thread that starts the TMA's copies.
template <class Product>
struct Loader : BlockView<Product> {
  const CUtensorMap *map_a, *map_b;

  MOESAIC_INLINE void await_free([[maybe_unused]] int stage, [[maybe_unused]] uint32_t parity) {
#if defined(MOESAIC_HOPPER)
    await(this->free(stage), parity);
#endif
  }
  MOESAIC_INLINE void expect([[maybe_unused]] int stage, [[maybe_unused]] int bytes) {
#if defined(MOESAIC_HOPPER)
    arrive_expecting(this->filled(stage), bytes);
#endif
  }
  template <int Which, int Rank>
  MOESAIC_INLINE void load([[maybe_unused]] int stage, [[maybe_unused]] int at,
                           [[maybe_unused]] int32_t near, [[maybe_unused]] int32_t far,
                           [[maybe_unused]] int32_t matrix) {
#if defined(MOESAIC_HOPPER)
    const uint32_t to =
        shared_address(this->shared) + static_cast<uint32_t>(stage * kStageBytes<Product> + at);
    copy_box<Rank>(to, Which == 0 ? map_a : map_b, this->filled(stage), near, far, matrix);
#endif
  }
};

/// One of 128 threads that multiply together.
template <class Product>
struct Group : BlockView<Product> {
  struct Own {
    float at[kGroupSums];
  };
  struct Sums {
    Own own;
    MOESAIC_INLINE explicit Sums(const Group&) : own() {}
    MOESAIC_INLINE Own& operator[](int) { return own; }
  };

  int number;

  MOESAIC_INLINE int index() const { return number; }
  MOESAIC_INLINE int thread() const {
#if defined(MOESAIC_HOPPER)
    return static_cast<int>(threadIdx.x) % kGroupThreads;
#else
    return 0;
#endif
  }
  template <class Phase>
  MOESAIC_INLINE void each(const Phase& phase) {
    phase(thread());
  }

  MOESAIC_INLINE void await_filled([[maybe_unused]] int stage, [[maybe_unused]] uint32_t parity) {
#if defined(MOESAIC_HOPPER)
    await(this->filled(stage), parity);
#endif
  }
  /// A warp has done with a stage.
  MOESAIC_INLINE void release([[maybe_unused]] int stage) {
#if defined(MOESAIC_HOPPER)
    if (thread() % kWarp == 0) arrive(this->free(stage));
#endif
  }
  MOESAIC_INLINE uint32_t stage_address([[maybe_unused]] int stage) const {
#if defined(MOESAIC_HOPPER)
    return shared_address(this->shared) + static_cast<uint32_t>(stage * kStageBytes<Product>);
#else
    return 0;
#endif
  }
  MOESAIC_INLINE void clear_piece([[maybe_unused]] int stage, [[maybe_unused]] int at) {
#if defined(MOESAIC_HOPPER)
    *reinterpret_cast<uint4*>(this->shared + stage * kStageBytes<Product> + at) = uint4{};
#endif
  }
  /// What the readers of a stage wrote there is seen by the tensor cores from here on.
  MOESAIC_INLINE void show_to_cores() {
#if defined(MOESAIC_HOPPER)
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    constexpr int kReaders = Product::Share::kReaders;
    asm volatile("bar.sync %0, %1;" ::"r"(kReaders == 1 ? 1 + number : 1),
                 "n"(kReaders * kGroupThreads)
                 : "memory");
#endif
  }

  MOESAIC_INLINE void begin_products([[maybe_unused]] Sums& sums) {
#if defined(MOESAIC_HOPPER)
    hold(sums.own.at);
    hold(sums.own.at + CoreSums::kCount);
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
  }
  template <bool AByRows, bool BByColumns>
  MOESAIC_INLINE void multiply([[maybe_unused]] Sums& sums, [[maybe_unused]] int part,
                               [[maybe_unused]] uint64_t a, [[maybe_unused]] uint64_t b) {
#if defined(MOESAIC_HOPPER)
    multiply_64x128<AByRows, BByColumns>(sums.own.at + part * CoreSums::kCount, a, b);
#endif
  }
  MOESAIC_INLINE void end_products() {
#if defined(MOESAIC_HOPPER)
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#endif
  }
  /// Until at most so many calls of end_products() have work left.
  template <int Left>
  MOESAIC_INLINE void await_products([[maybe_unused]] Sums& sums) {
#if defined(MOESAIC_HOPPER)
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Left) : "memory");
    hold(sums.own.at);
    hold(sums.own.at + CoreSums::kCount);
#endif
  }

  /// Of two lanes that differ in `mask`, the lower gives its sum `high` for the other's `low`.
  MOESAIC_INLINE void swap([[maybe_unused]] Sums& sums, [[maybe_unused]] int mask,
                           [[maybe_unused]] int low, [[maybe_unused]] int high) {
#if defined(MOESAIC_HOPPER)
    const bool upper = (thread() & mask) != 0;
    float(&at)[kGroupSums] = sums.own.at;
    const float got = __shfl_xor_sync(0xFFFFFFFFu, upper ? at[low] : at[high], mask);
    at[low] = upper ? got : at[low];
    at[high] = upper ? at[high] : got;
#endif
  }
};

template <class Product>
__global__ void __launch_bounds__(kThreads, 1)
    multiply(const __grid_constant__ Product product, const __grid_constant__ CUtensorMap map_a,
             const __grid_constant__ CUtensorMap map_b) {
#if defined(MOESAIC_HOPPER)
  using Layout = SharedLayout<Product>;
  extern __shared__ char raw[];
  char* const shared = raw + (kPatternBytes - shared_address(raw) % kPatternBytes) % kPatternBytes;
  const int warp = __shfl_sync(0xFFFFFFFFu, static_cast<int>(threadIdx.x) / kWarp, 0);
  BlockView<Product> view{shared, product.offsets};
  if (product.experts < kMaxOffsets) {
    auto* const copy = reinterpret_cast<int32_t*>(shared + Layout::kOffsets);
    for (int i = static_cast<int>(threadIdx.x); i <= product.experts; i += kThreads) {
      copy[i] = product.offsets[i];
    }
    view.expert_offsets = copy;
  }
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < Layout::kStages; ++stage) {
      begin_barrier(view.filled(stage), 1);
      begin_barrier(view.free(stage), Product::Share::kReaders * kGroupThreads / kWarp);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  }
  __syncthreads();
  if (warp >= kGroups * kGroupThreads / kWarp) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kLoadingRegisters));
    if (threadIdx.x == kGroups * kGroupThreads) {
      fetch_map(&map_a);
      fetch_map(&map_b);
      Loader<Product> loader{view, &map_a, &map_b};
      load_tiles(product, loader);
    }
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kMultiplyingRegisters));
    Group<Product> group{view, warp * kWarp / kGroupThreads};
    multiply_tiles(product, group);
  }
#endif
}

}  // namespace moesaic::ops::kernels::hopper
