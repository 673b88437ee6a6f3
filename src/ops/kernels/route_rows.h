// SPDX-License-Identifier: Apache-2.0
// The computed experts of a call, the tokens of a segment that each of them computes, and the
// arrays of a routing.
#pragma once

#include <cstdint>

#include "block.h"

namespace moesaic::ops::kernels {

constexpr int32_t kMaxExperts = 4096;

/// The computed experts of a call, as bits in a kernel's arguments: copies from host memory would
/// not fit into a CUDA graph.
struct KeptExperts {
  bool all;
  uint32_t bits[kMaxExperts / 32];

  MOESAIC_INLINE bool has(int64_t expert) const {
    return all || (bits[expert / 32] >> (expert % 32) & 1u) != 0;
  }
  /// Returns the index of an expert among the computed ones, -1 where it is none.
  MOESAIC_INLINE int32_t slot(int64_t expert) const {
    if (all) return static_cast<int32_t>(expert);
    if (!has(expert)) return -1;
    int32_t slot = count_bits(bits[expert / 32] & lanes_before(static_cast<int>(expert % 32)));
    for (int64_t word = 0; word < expert / 32; ++word) slot += count_bits(bits[word]);
    return slot;
  }
};

/// Bit masks in shared memory, a word per warp: which tokens of a segment each expert computes.
struct SegmentMasks {
  uint32_t* masks;  // [threads / 32][slots]
  int32_t slots;

  static MOESAIC_INLINE int64_t bytes(int threads, int64_t slots) {
    return static_cast<int64_t>(sizeof(uint32_t)) * divide_up(threads, kWarp) * slots;
  }

  template <class Block>
  MOESAIC_INLINE void clear(Block& block) const {
    block.each([&](int thread) {
      const int words = divide_up(block.threads(), kWarp) * slots;
      for (int i = thread; i < words; i += block.threads()) masks[i] = 0;
    });
  }
  template <class Block>
  MOESAIC_INLINE void set(Block& block, int thread, int32_t slot) const {
    block.atomic_or(masks + thread / kWarp * slots + slot, uint32_t{1} << (thread % kWarp));
  }
  /// Returns how many tokens before this thread's go to the expert.
  MOESAIC_INLINE int32_t before(int thread, int32_t slot) const {
    const int warp = thread / kWarp;
    int32_t found = count_bits(masks[warp * slots + slot] & lanes_before(thread % kWarp));
    for (int w = 0; w < warp; ++w) found += count_bits(masks[w * slots + slot]);
    return found;
  }
};

/// Arrays of a routing that the last kernel fills.
template <class Scalar>
struct RoutingArrays {
  int32_t *offsets, *token, *token_offsets, *token_row;
  Scalar* gate;
  int64_t bound, tokens;
};

}  // namespace moesaic::ops::kernels
