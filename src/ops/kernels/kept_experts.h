// SPDX-License-Identifier: Apache-2.0
// Computed experts of a call. Their list is passed to a GPU as bits in a kernel's arguments,
// because copies from host memory would not fit into a CUDA graph.
#pragma once

#include <cstdint>

#include "block.h"

namespace moesaic::ops::kernels {

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

}  // namespace moesaic::ops::kernels
