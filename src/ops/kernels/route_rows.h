// SPDX-License-Identifier: Apache-2.0
// The computed experts of a call, and positions of the rows of a routing. Every segment of tokens
// counts its rows for each expert; running sums of these counts give the offset of a segment's
// rows, and bit masks the position of a token's row within its segment.
#pragma once

#include "../route_segments.h"
#include "scan.h"

namespace moesaic::ops::kernels {

/// The list of computed experts is passed to a GPU as bits in a kernel's arguments, because copies
/// from host memory would not fit into a CUDA graph.
constexpr int32_t kMaxExperts = 4096;

/// Lists on the device: slot_of[e] is e's index among the computed experts or -1, columns[slot] the
/// id of the expert. Both are null where all experts are computed.
struct KeptView {
  const int32_t *slot_of, *columns;

  MOESAIC_INLINE int32_t slot(int64_t expert) const {
    return slot_of == nullptr ? static_cast<int32_t>(expert) : slot_of[expert];
  }
  MOESAIC_INLINE int64_t column(int64_t slot) const {
    return columns == nullptr ? slot : columns[slot];
  }
};

/// Writes the lists of KeptView with one block.
struct ExpandKept {
  uint32_t bits[kMaxExperts / 32];
  int32_t experts;
  int32_t *slot_of, *columns;

  template <class Block>
  MOESAIC_INLINE void operator()(Block& block) const {
    block.each([&](int thread) {
      for (int32_t e = thread; e < experts; e += block.threads()) {
        int32_t slot = count_bits(bits[e / 32] & lanes_before(e % 32));
        for (int32_t word = 0; word < e / 32; ++word) slot += count_bits(bits[word]);
        const bool computed = (bits[e / 32] >> (e % 32) & 1u) != 0;
        slot_of[e] = computed ? slot : -1;
        if (computed) columns[slot] = e;
      }
    });
  }
};

/// Replaces before[slot, segment], the rows of each segment, by the rows of the segments before it;
/// totals[slot] is the number of rows of the expert. One block per expert.
struct ScanRows {
  int64_t count;  // Number of segments.
  int32_t *before, *totals;

  static MOESAIC_INLINE int64_t shared_bytes(int threads) { return scan_bytes(threads); }

  template <class Block>
  MOESAIC_INLINE void operator()(Block& block) const {
    int32_t* const rows = before + block.index() * count;
    const int32_t total = exclusive_scan(
        block, block.template shared<int32_t>(0), count, [&](int64_t i) { return rows[i]; },
        [&](int64_t i, int32_t sum) { rows[i] = sum; });
    block.each([&](int thread) {
      if (thread == 0) totals[block.index()] = total;
    });
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
  MOESAIC_INLINE int32_t count(int threads, int32_t slot) const {
    int32_t found = 0;
    for (int w = 0; w < divide_up(threads, kWarp); ++w)
      found += count_bits(masks[w * slots + slot]);
    return found;
  }
};

/// Offsets of the rows of the block's segment.
struct SegmentRows {
  const int32_t *before, *totals;  // Outputs of ScanQueues or ScanRows.
  int64_t count;
  int32_t slots;

  static MOESAIC_INLINE int64_t bytes(int threads, int64_t slots) {
    return scan_bytes(threads) + static_cast<int64_t>(sizeof(int32_t)) * slots;
  }

  struct Found {
    int32_t filled, pulled;  // Rows of all segments, and entries of token_row in earlier segments.
  };

  /// Writes starts[slot] in shared memory; the first block writes `offsets` and the last element of
  /// `token_offsets`.
  template <class Block, class Scalar>
  MOESAIC_INLINE Found find(Block& block, int32_t* work, int32_t* starts,
                            const RoutingArrays<Scalar>& out) const {
    const int64_t segment = block.index();
    const bool first = segment == 0;
    const int32_t filled = exclusive_scan(
        block, work, slots, [&](int64_t s) { return totals[s]; },
        [&](int64_t s, int32_t sum) {
          if (first) out.offsets[s] = sum;
          starts[s] = sum + (segment < count ? before[s * count + segment] : 0);
        });
    const int32_t pulled = exclusive_scan(
        block, work, slots,
        [&](int64_t s) { return segment < count ? before[s * count + segment] : 0; },
        [](int64_t, int32_t) {});
    block.each([&](int thread) {
      if (thread == 0 && first) {
        out.offsets[slots] = filled;
        out.token_offsets[out.tokens] = filled;
      }
      const int64_t stride = block.count() * block.threads();
      for (int64_t r = filled + segment * block.threads() + thread; r < out.bound; r += stride) {
        out.token[r] = 0;
        out.token_row[r] = 0;
        out.gate[r] = 0;
      }
    });
    return {filled, pulled};
  }
};

}  // namespace moesaic::ops::kernels
