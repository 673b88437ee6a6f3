// SPDX-License-Identifier: Apache-2.0
// Batch priority: within each rank, tokens queue by falling first gate. In the queue of an expert
// in a group, all choices of lower ranks fit, some of one rank, and none of higher ranks.
#pragma once

#include <cstdint>

#include "block.h"
#include "number.h"
#include "route_token_choice_queues.h"
#include "select.h"

namespace moesaic::ops::kernels {

/// Border of a queue: ranks below `rank` fit, and `rank` up to `last` if `room` is not 0.
struct QueueBorder {
  Border last;
  int32_t rank, room;

  MOESAIC_INLINE bool fits(int32_t of_rank, const QueueEntry& place) const {
    return of_rank < rank || (of_rank == rank && room > 0 && last.accepts(place));
  }
};

/// Finds borders[group, slot], one per block.
template <class Scalar>
struct FindQueueBorders {
  QueueIndex queues;
  GroupRows capacity;
  const int32_t *counts, *slot;  // Running sums, and slots [T, k].
  const int32_t* queued;         // [slots]
  const Scalar* gate;            // [T, k]
  QueueBorder* borders;

  static MOESAIC_INLINE int64_t shared_bytes(int threads) { return select_bytes(threads); }

  template <class Block>
  MOESAIC_INLINE void operator()(Block& block) const {
    const int64_t group = block.index() / queues.slots;
    const auto expert = static_cast<int32_t>(block.index() % queues.slots);
    QueueBorder border = overflow(group, expert);
    if (border.room > 0) {
      const int64_t begin = queues.segments.cut.begin(group);
      const int64_t size = queues.segments.cut.size(group);
      const auto digits = PlaceDigits::of(sizeof(Scalar), begin, size);
      border.last = select_border(
          block, block.template shared<char>(0), size, border.room, digits,
          [&](int64_t i) { return slot[(begin + i) * queues.k + border.rank] == expert; },
          [&](int64_t i) { return QueueEntry::of(gate[(begin + i) * queues.k], begin + i); });
    }
    block.each([&](int thread) {
      if (thread == 0) borders[block.index()] = border;
    });
  }

 private:
  /// Returns the first rank that does not fit entirely, and how many of its choices do.
  MOESAIC_INLINE QueueBorder overflow(int64_t group, int32_t expert) const {
    const int64_t limit = capacity.of(group);
    const int32_t* const own = counts + expert * queues.per_slot();
    const int64_t begin = queues.group_begin(group);
    const int64_t segments = queues.segments_of(group);
    for (int32_t rank = 0; rank < queues.k; ++rank) {
      const int64_t next = begin + (rank + 1) * segments;
      const int32_t lower = own[begin + rank * segments] - own[begin];
      const int32_t until = (next < queues.per_slot() ? own[next] : queued[expert]) - own[begin];
      if (until > limit) return {Border::everything(), rank, static_cast<int32_t>(limit - lower)};
    }
    return {Border::everything(), queues.k, 0};
  }
};

/// Drops choices without room from slot[T, k] and counts rows[slot, segment].
template <class Scalar>
struct MarkByPriority {
  QueueIndex queues;
  const QueueBorder* borders;
  const Scalar* gate;
  int32_t *slot, *rows;

  MOESAIC_INLINE int64_t shared_bytes() const {
    return static_cast<int64_t>(sizeof(int32_t)) * queues.slots;
  }

  template <class Block>
  MOESAIC_INLINE void operator()(Block& block) const {
    int32_t* const histogram = block.template shared<int32_t>(0);
    const int64_t segment = block.index(), group = queues.segments.group(segment);
    const int64_t begin = queues.segments.begin(segment), end = queues.segments.end(segment);
    block.each([&](int thread) {
      for (int32_t s = thread; s < queues.slots; s += block.threads()) histogram[s] = 0;
    });
    block.each([&](int thread) {
      const int64_t token = begin + thread;
      if (token >= end) return;
      const QueueEntry place = QueueEntry::of(gate[token * queues.k], token);
      for (int32_t rank = 0; rank < queues.k; ++rank) {
        int32_t& expert = slot[token * queues.k + rank];
        if (expert < 0) continue;
        if (borders[group * queues.slots + expert].fits(rank, place)) {
          block.atomic_add(histogram + expert, 1);
        } else {
          expert = -1;
        }
      }
    });
    block.each([&](int thread) {
      for (int32_t s = thread; s < queues.slots; s += block.threads()) {
        rows[s * queues.count + segment] = histogram[s];
      }
    });
  }
};

}  // namespace moesaic::ops::kernels
