// SPDX-License-Identifier: Apache-2.0
// Token choice, second half: lays out the queues of experts by counting. Each segment of tokens
// counts how often each rank names each expert; running sums of these counts say where a segment's
// entries begin in their queues, how many of them find room, and in which rows they are. Nothing is
// sorted, and results do not depend on the order of blocks.
#pragma once

#include <cstdint>

#include "../route_segments.h"
#include "block.h"
#include "route_rows.h"
#include "scan.h"

namespace moesaic::ops::kernels {

/// Index of the count of (expert, segment, rank): by expert, then group, then rank, then segment,
/// the order in which the queue of an expert fills.
struct QueueIndex {
  Segments segments;
  int64_t count, groups;  // Numbers of segments and groups.
  int32_t k, slots;

  QueueIndex(const Segments& segments_, int64_t k_, int64_t slots_)
      : segments(segments_),
        count(segments_.count()),
        groups(segments_.cut.count()),
        k(static_cast<int32_t>(k_)),
        slots(static_cast<int32_t>(slots_)) {}

  MOESAIC_INLINE int64_t per_slot() const { return count * k; }
  MOESAIC_INLINE int64_t segments_of(int64_t group) const {
    return group + 1 < groups ? segments.per_group : count - segments.first_of(group);
  }
  /// Returns the index of (segment, rank) within an expert's counts.
  MOESAIC_INLINE int64_t at(int64_t segment, int32_t rank) const {
    const int64_t group = segments.group(segment), first = segments.first_of(group);
    return first * k + rank * segments_of(group) + (segment - first);
  }
  MOESAIC_INLINE int64_t group_begin(int64_t group) const { return segments.first_of(group) * k; }
};

/// Counts the choices slot[T, k] of the block's segment; `histogram` is shared memory of `slots`
/// numbers.
template <class Block>
MOESAIC_INLINE void count_choices(Block& block, const QueueIndex& queues, int32_t k,
                                  const int32_t* slot, int32_t* histogram, int32_t* counts) {
  const int64_t segment = block.index();
  const int64_t begin = queues.segments.begin(segment), end = queues.segments.end(segment);
  for (int32_t rank = 0; rank < k; ++rank) {
    block.each([&](int thread) {
      for (int32_t s = thread; s < queues.slots; s += block.threads()) histogram[s] = 0;
    });
    block.each([&](int thread) {
      if (begin + thread >= end) return;
      const int32_t named = slot[(begin + thread) * k + rank];
      if (named >= 0) block.atomic_add(histogram + named, 1);
    });
    block.each([&](int thread) {
      for (int32_t s = thread; s < queues.slots; s += block.threads()) {
        counts[s * queues.per_slot() + queues.at(segment, rank)] = histogram[s];
      }
    });
  }
}

/// Replaces counts by running sums; one block per expert. before[slot, segment]: the rows of
/// earlier segments; totals[slot]: all rows.
struct ScanQueues {
  QueueIndex queues;
  GroupRows capacity;
  int32_t *counts, *before, *totals;

  static MOESAIC_INLINE int64_t shared_bytes(int threads) { return scan_bytes(threads); }

  template <class Block>
  MOESAIC_INLINE void operator()(Block& block) const {
    int32_t* const work = block.template shared<int32_t>(0);
    const int64_t slot = block.index();
    int32_t* const own = counts + slot * queues.per_slot();
    const int32_t all = exclusive_scan(
        block, work, queues.per_slot(), [&](int64_t i) { return own[i]; },
        [&](int64_t i, int32_t sum) { own[i] = sum; });
    int32_t* const rows = before + slot * queues.count;
    const int32_t total = exclusive_scan(
        block, work, queues.count, [&](int64_t segment) { return fitting(own, all, segment); },
        [&](int64_t segment, int32_t sum) { rows[segment] = sum; });
    block.each([&](int thread) {
      if (thread == 0) totals[slot] = total;
    });
  }

 private:
  MOESAIC_INLINE int32_t fitting(const int32_t* own, int32_t all, int64_t segment) const {
    const int64_t group = queues.segments.group(segment);
    const int32_t queue = own[queues.group_begin(group)];
    int64_t fit = 0;
    for (int32_t rank = 0; rank < queues.k; ++rank) {
      const int64_t i = queues.at(segment, rank);
      const int32_t next = i + 1 < queues.per_slot() ? own[i + 1] : all;
      fit += accepted(own[i] - queue, next - own[i], capacity.of(group));
    }
    return static_cast<int32_t>(fit);
  }
};

/// Token choice, second half: writes rows for the accepted choices. `slot` holds the choices'
/// experts on entry (-1: not computed) and their rows on return (-1: none).
/// Needs at least one block, even without tokens.
template <class Scalar>
struct PlaceChoices {
  QueueIndex queues;
  GroupRows capacity;
  bool limited;           // Whether choices can be dropped.
  const int32_t* counts;  // Running sums.
  SegmentRows rows;
  const Scalar* gate;  // [T, k]
  int32_t* slot;       // [T, k]
  RoutingArrays<Scalar> out;

  MOESAIC_INLINE int64_t shared_bytes(int threads) const {
    return SegmentRows::bytes(threads, queues.slots) + SegmentMasks::bytes(threads, queues.slots);
  }

  template <class Block>
  MOESAIC_INLINE void operator()(Block& block) const {
    const int threads = block.threads();
    int32_t* const work = block.template shared<int32_t>(0);
    int32_t* const starts = block.template shared<int32_t>(scan_bytes(threads));
    const SegmentMasks masks{
        block.template shared<uint32_t>(SegmentRows::bytes(threads, queues.slots)), queues.slots};
    const auto found = rows.find(block, work, starts, out);
    const int64_t segment = block.index();
    if (segment >= queues.count) return;
    const int64_t begin = queues.segments.begin(segment), end = queues.segments.end(segment);
    if (limited) drop_past_capacity(block, masks, begin, end);
    masks.clear(block);
    block.each([&](int thread) {
      if (begin + thread >= end) return;
      for (int32_t rank = 0; rank < queues.k; ++rank) {
        const int32_t expert = slot[(begin + thread) * queues.k + rank];
        if (expert >= 0) masks.set(block, thread, expert);
      }
    });
    exclusive_scan(
        block, work, end - begin, [&](int64_t i) { return rows_of(begin + i); },
        [&](int64_t i, int32_t sum) { out.token_offsets[begin + i] = found.pulled + sum; });
    block.each([&](int thread) {
      if (begin + thread < end) place(begin + thread, thread, masks, starts);
    });
  }

 private:
  /// Drops the choices of the segment that exceed the capacity of their queue.
  template <class Block>
  MOESAIC_INLINE void drop_past_capacity(Block& block, const SegmentMasks& masks, int64_t begin,
                                         int64_t end) const {
    const int64_t segment = block.index(), group = queues.segments.group(segment);
    for (int32_t rank = 0; rank < queues.k; ++rank) {
      masks.clear(block);
      block.each([&](int thread) {
        if (begin + thread >= end) return;
        const int32_t expert = slot[(begin + thread) * queues.k + rank];
        if (expert >= 0) masks.set(block, thread, expert);
      });
      block.each([&](int thread) {
        if (begin + thread >= end) return;
        int32_t& expert = slot[(begin + thread) * queues.k + rank];
        if (expert < 0) return;
        const int32_t* const own = counts + expert * queues.per_slot();
        const int64_t place = own[queues.at(segment, rank)] - own[queues.group_begin(group)] +
                              masks.before(thread, expert);
        if (place >= capacity.of(group)) expert = -1;
      });
    }
  }

  MOESAIC_INLINE int32_t rows_of(int64_t token) const {
    int32_t found = 0;
    for (int32_t rank = 0; rank < queues.k; ++rank) found += slot[token * queues.k + rank] >= 0;
    return found;
  }

  MOESAIC_INLINE void place(int64_t token, int thread, const SegmentMasks& masks,
                            const int32_t* starts) const {
    int32_t pull = out.token_offsets[token];
    for (int64_t i = token * queues.k; i < (token + 1) * queues.k; ++i) {
      const int32_t expert = slot[i];
      if (expert < 0) continue;
      const int32_t row = starts[expert] + masks.before(thread, expert);
      out.token[row] = static_cast<int32_t>(token);
      out.gate[row] = gate[i];
      out.token_row[pull++] = row;
      slot[i] = row;
    }
  }
};

}  // namespace moesaic::ops::kernels
