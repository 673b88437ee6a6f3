// SPDX-License-Identifier: Apache-2.0
// Exclusive prefix sums within a block.
#pragma once

#include "block.h"

namespace moesaic::ops::kernels {

constexpr int kScanThreads = 1024;

/// Returns the bytes of shared memory that exclusive_scan() needs.
MOESAIC_INLINE int64_t scan_bytes(int threads) {
  return static_cast<int64_t>(sizeof(int32_t)) * (2 * threads + 1);
}

/// Calls put(i, sum of get(j) for j < i) for i < count; returns the total. `get(i)` is called
/// before `put(i)`, so both may access the same element. `work` is scan_bytes() of shared memory.
template <class Block, class Get, class Put>
MOESAIC_INLINE int32_t exclusive_scan(Block& block, int32_t* work, int64_t count, const Get& get,
                                      const Put& put) {
  const int threads = block.threads();
  int32_t* carry = work + 2 * threads;
  block.each([&](int thread) {
    if (thread == 0) *carry = 0;
  });
  for (int64_t begin = 0; begin < count; begin += threads) {
    int32_t* from = work;
    int32_t* to = work + threads;
    typename Block::template Local<int32_t> own(block);
    block.each([&](int thread) {
      own[thread] = begin + thread < count ? get(begin + thread) : 0;
      from[thread] = own[thread];
    });
    for (int step = 1; step < threads; step *= 2) {
      block.each([&](int thread) {
        to[thread] = from[thread] + (thread >= step ? from[thread - step] : 0);
      });
      int32_t* const swap = from;
      from = to;
      to = swap;
    }
    block.each([&](int thread) {
      if (begin + thread < count) put(begin + thread, *carry + from[thread] - own[thread]);
    });
    block.each([&](int thread) {
      if (thread == 0) *carry += from[threads - 1];
    });
  }
  return block.broadcast(carry);
}

}  // namespace moesaic::ops::kernels
