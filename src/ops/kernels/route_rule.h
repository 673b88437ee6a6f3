// SPDX-License-Identifier: Apache-2.0
// A routing without a ranking of experts by tokens. A `Rule` says for (token, slot) whether there
// is a row, and its gate:
//
//   bool selects(int64_t token, int32_t slot) const;
//   Scalar gate(int64_t token, int32_t slot) const;
#pragma once

#include <cstdint>

#include "block.h"
#include "route_rows.h"
#include "scan.h"

namespace moesaic::ops::kernels {

/// Counts rows[slot, segment]: how many tokens of the segment the expert has.
template <class Rule>
struct CountRule {
  Segments segments;
  int64_t count;
  int32_t slots;
  Rule rule;
  int32_t* rows;

  MOESAIC_INLINE int64_t shared_bytes(int threads) const {
    return SegmentMasks::bytes(threads, slots);
  }

  template <class Block>
  MOESAIC_INLINE void operator()(Block& block) const {
    const SegmentMasks masks{block.template shared<uint32_t>(0), slots};
    const int64_t begin = segments.begin(block.index()), end = segments.end(block.index());
    masks.clear(block);
    block.each([&](int thread) {
      for (int32_t slot = 0; slot < slots && begin + thread < end; ++slot) {
        if (rule.selects(begin + thread, slot)) masks.set(block, thread, slot);
      }
    });
    block.each([&](int thread) {
      for (int32_t slot = thread; slot < slots; slot += block.threads()) {
        rows[slot * count + block.index()] = masks.count(block.threads(), slot);
      }
    });
  }
};

/// Fills a routing; a token's rows are in the order of experts. Needs at least one block.
template <class Scalar, class Rule>
struct PlaceRule {
  Segments segments;
  SegmentRows rows;
  Rule rule;
  RoutingArrays<Scalar> out;

  MOESAIC_INLINE int64_t shared_bytes(int threads) const {
    return SegmentRows::bytes(threads, rows.slots) + SegmentMasks::bytes(threads, rows.slots);
  }

  template <class Block>
  MOESAIC_INLINE void operator()(Block& block) const {
    const int threads = block.threads();
    int32_t* const work = block.template shared<int32_t>(0);
    int32_t* const starts = block.template shared<int32_t>(scan_bytes(threads));
    const SegmentMasks masks{
        block.template shared<uint32_t>(SegmentRows::bytes(threads, rows.slots)), rows.slots};
    const auto found = rows.find(block, work, starts, out);
    if (block.index() >= rows.count) return;
    const int64_t begin = segments.begin(block.index()), end = segments.end(block.index());
    typename Block::template Local<int32_t> own(block);
    masks.clear(block);
    block.each([&](int thread) {
      own[thread] = 0;
      for (int32_t slot = 0; slot < rows.slots && begin + thread < end; ++slot) {
        if (!rule.selects(begin + thread, slot)) continue;
        masks.set(block, thread, slot);
        ++own[thread];
      }
    });
    exclusive_scan(
        block, work, end - begin, [&](int64_t i) { return own[static_cast<int>(i)]; },
        [&](int64_t i, int32_t sum) { out.token_offsets[begin + i] = found.pulled + sum; });
    block.each([&](int thread) {
      if (begin + thread < end && own[thread] > 0) place(begin + thread, thread, masks, starts);
    });
  }

 private:
  MOESAIC_INLINE void place(int64_t token, int thread, const SegmentMasks& masks,
                            const int32_t* starts) const {
    int32_t pull = out.token_offsets[token];
    for (int32_t slot = 0; slot < rows.slots; ++slot) {
      if (!rule.selects(token, slot)) continue;
      const int32_t row = starts[slot] + masks.before(thread, slot);
      out.token[row] = static_cast<int32_t>(token);
      out.gate[row] = rule.gate(token, slot);
      out.token_row[pull++] = row;
    }
  }
};

}  // namespace moesaic::ops::kernels
