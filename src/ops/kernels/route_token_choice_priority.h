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

/// First rank of a queue that does not fit entirely, and how many of its choices do.
struct Overflow {
  int32_t rank, room;

  MOESAIC_INLINE bool fits(int32_t of_rank, const QueueEntry& place, const Border& last) const {
    return of_rank < rank || (of_rank == rank && room > 0 && last.accepts(place));
  }
};

/// Queues [group, slot] of the choices of the rank that overflows.
template <class Scalar>
struct PriorityQueues {
  QueueIndex index;
  GroupRows capacity;
  const int32_t *counts, *slot;  // Running sums, and slots [T, k].
  const int32_t* queued;         // [slots]
  const Scalar* gate;            // [T, k]

  struct Queue {
    int64_t begin, size;
    int32_t rank;
    PlaceDigits digits;
    const int32_t* slot;  // Of the first token, in the rank that overflows.
    const Scalar* gate;   // Of the first token, in its first rank.
    int64_t k;
    int32_t expert;

    MOESAIC_INLINE bool takes(int64_t i) const { return slot[i * k] == expert; }
    MOESAIC_INLINE QueueEntry place(int64_t i) const {
      return QueueEntry::of(gate[i * k], begin + i);
    }
  };

  MOESAIC_INLINE int64_t count() const { return index.groups * index.slots; }
  static MOESAIC_INLINE PlaceDigits digits(int64_t size, int64_t begin = 0) {
    return PlaceDigits::of(sizeof(Scalar), begin, size);
  }

  MOESAIC_INLINE Queue at(int64_t queue) const {
    const TokenGroups& cut = index.segments.cut;
    const int64_t begin = cut.begin(queue / index.slots);
    const Overflow over = overflow(queue);
    return {begin,
            cut.size(queue / index.slots),
            over.room,
            digits(cut.group_size, begin),
            slot + begin * index.k + over.rank,
            gate + begin * index.k,
            index.k,
            static_cast<int32_t>(queue % index.slots)};
  }

  MOESAIC_INLINE Overflow overflow(int64_t queue) const {
    const int64_t group = queue / index.slots, limit = capacity.of(group);
    const int64_t expert = queue % index.slots;
    const int32_t* const own = counts + expert * index.per_slot();
    const int64_t first = index.group_begin(group), segments = index.segments_of(group);
    for (int32_t rank = 0; rank < index.k; ++rank) {
      const int64_t next = first + (rank + 1) * segments;
      const int32_t lower = own[first + rank * segments] - own[first];
      const int32_t until = (next < index.per_slot() ? own[next] : queued[expert]) - own[first];
      if (until > limit) return {rank, static_cast<int32_t>(limit - lower)};
    }
    return {index.k, 0};
  }
};

/// Drops choices without room from slot[T, k] and counts rows[slot, segment].
template <class Scalar>
struct MarkByPriority {
  PriorityQueues<Scalar> by_priority;
  const Border* borders;
  int32_t *slot, *rows;

  MOESAIC_INLINE int64_t shared_bytes() const {
    return static_cast<int64_t>(sizeof(int32_t)) * by_priority.index.slots;
  }

  template <class Block>
  MOESAIC_INLINE void operator()(Block& block) const {
    const QueueIndex& queues = by_priority.index;
    int32_t* const histogram = block.template shared<int32_t>(0);
    const int64_t segment = block.index(), group = queues.segments.group(segment);
    const int64_t begin = queues.segments.begin(segment), end = queues.segments.end(segment);
    block.each([&](int thread) {
      for (int32_t s = thread; s < queues.slots; s += block.threads()) histogram[s] = 0;
    });
    block.each([&](int thread) {
      const int64_t token = begin + thread;
      if (token >= end) return;
      const QueueEntry place = QueueEntry::of(by_priority.gate[token * queues.k], token);
      for (int32_t rank = 0; rank < queues.k; ++rank) {
        int32_t& expert = slot[token * queues.k + rank];
        if (expert < 0) continue;
        const int64_t queue = group * queues.slots + expert;
        if (by_priority.overflow(queue).fits(rank, place, borders[queue])) {
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
