// SPDX-License-Identifier: Apache-2.0
// Token choice. Its first half selects the best experts of every token, computes their gates and
// counts how often each rank of each segment names each expert. One thread per token, one block per
// segment. Logits pass through shared memory by chunks of columns, so that global reads coalesce.
//
// Its second half lays out the queues of experts by counting. Each segment of tokens counts how
// often each rank names each expert; running sums of these counts say where a segment's entries
// begin in their queues, how many of them find room, and in which rows they are. Nothing is sorted,
// and results do not depend on the order of blocks.
#pragma once

#include "moesaic/ops/route_options.h"
#include "moesaic/ops/softmax_exp.h"
#include "number.h"
#include "route_rows.h"

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
  bool is_limited;        // Whether choices can be dropped.
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
    if (is_limited) drop_past_capacity(block, masks, begin, end);
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

/// Number of experts of a token that a thread keeps in registers.
constexpr int kMostChoices = 8;

constexpr int kChunkColumns = 32;

/// Columns [from, from + width) of a segment's logits in shared memory.
template <class Scalar>
struct LogitChunk {
  Scalar* at;
  int64_t from;
  int width, stride;  // The stride is odd, so that rows of threads start in different banks.

  static MOESAIC_INLINE int stride_for(int64_t experts) {
    return static_cast<int>(min<int64_t>(experts, kChunkColumns)) | 1;
  }
  static MOESAIC_INLINE int64_t bytes(int threads, int64_t experts) {
    return static_cast<int64_t>(sizeof(Scalar)) * threads * stride_for(experts);
  }
  MOESAIC_INLINE Scalar& of(int thread, int column) const { return at[thread * stride + column]; }
};

/// Calls visit(chunk) for all columns of the tokens [begin, end) in turn; visit has to end with a
/// phase. A single chunk is loaded once.
template <class Scalar, class Block, class Visit>
MOESAIC_INLINE void for_chunks(Block& block, Scalar* shared, const Scalar* logits, int64_t experts,
                               int64_t begin, int64_t end, bool is_loaded, const Visit& visit) {
  for (int64_t from = 0; from < experts; from += kChunkColumns) {
    const int width = static_cast<int>(min<int64_t>(kChunkColumns, experts - from));
    const LogitChunk<Scalar> chunk{shared, from, width, LogitChunk<Scalar>::stride_for(experts)};
    if (!is_loaded || experts > kChunkColumns) {
      block.each([&](int thread) {
        const int64_t count = (end - begin) * width;
        for (int64_t i = thread; i < count; i += block.threads()) {
          const int row = static_cast<int>(i) / width, column = static_cast<int>(i) % width;
          chunk.of(row, column) = logits[(begin + row) * experts + from + column];
        }
      });
    }
    visit(chunk);
  }
}

/// Best experts of a token so far, best first, ties to the lower expert.
template <class Scalar, int Max>
struct BestExperts {
  Scalar value[Max];
  int32_t expert[Max];
  bool has_started, has_nan;

  MOESAIC_INLINE void offer(Scalar candidate, int32_t index) {
    if (!has_started) {
      MOESAIC_UNROLL
      for (int i = 0; i < Max; ++i) expert[i] = -1;
      has_started = true;
    }
    has_nan = has_nan || candidate != candidate;
    Scalar carried = candidate != candidate ? -infinity<Scalar>() : candidate;
    bool placed = false;
    MOESAIC_UNROLL
    for (int i = 0; i < Max; ++i) {
      placed = placed || expert[i] < 0 || carried > value[i];
      if (!placed) continue;
      const Scalar pushed = value[i];
      const int32_t pushed_index = expert[i];
      value[i] = carried;
      expert[i] = index;
      carried = pushed;
      index = pushed_index;
    }
  }
};

/// Outputs of token choice before rows are laid out. choice, slot, gate: [T, k]; slot is the
/// expert's index among the computed ones, or -1. counts: see QueueIndex.
template <class Scalar>
struct ChooseExperts {
  const Scalar* logits;
  int64_t experts;
  int32_t k;
  Gate kind;
  KeptView kept;
  bool is_rerouted;  // Selection sees the kept experts only.
  QueueIndex queues;
  int32_t *choice, *slot, *counts;
  Scalar* gate;

  MOESAIC_INLINE int64_t shared_bytes(int threads) const {
    return LogitChunk<Scalar>::bytes(threads, experts) +
           static_cast<int64_t>(sizeof(int32_t)) * queues.slots;
  }
  MOESAIC_INLINE bool is_seen(int64_t expert) const {
    return !is_rerouted || kept.slot(expert) >= 0;
  }
};

template <class Scalar, int Max>
struct ChooseBestExperts {
  ChooseExperts<Scalar> in;

  using Best = BestExperts<Scalar, Max>;
  struct State {
    Best best;
    Scalar sum;
  };

  template <class Block>
  MOESAIC_INLINE void operator()(Block& block) const {
    const int64_t begin = in.queues.segments.begin(block.index());
    const int64_t end = in.queues.segments.end(block.index());
    Scalar* const tile = block.template shared<Scalar>(0);
    typename Block::template Local<State> state(block);
    for_chunks(block, tile, in.logits, in.experts, begin, end, false, [&](const auto& chunk) {
      block.each([&](int thread) {
        if (begin + thread >= end) return;
        for (int c = 0; c < chunk.width; ++c) {
          if (in.is_seen(chunk.from + c)) {
            state[thread].best.offer(chunk.of(thread, c), static_cast<int32_t>(chunk.from + c));
          }
        }
      });
    });
    if (in.kind == Gate::softmax_all) {
      for_chunks(block, tile, in.logits, in.experts, begin, end, true, [&](const auto& chunk) {
        block.each([&](int thread) {
          if (begin + thread >= end) return;
          for (int c = 0; c < chunk.width; ++c) {
            if (!in.is_seen(chunk.from + c)) continue;
            state[thread].sum += softmax_exp(chunk.of(thread, c) - state[thread].best.value[0]);
          }
        });
      });
    }
    block.each([&](int thread) {
      if (begin + thread < end) finish(begin + thread, state[thread]);
    });
    int32_t* const histogram =
        block.template shared<int32_t>(LogitChunk<Scalar>::bytes(block.threads(), in.experts));
    count_choices(block, in.queues, in.k, in.slot, histogram, in.counts);
  }

 private:
  MOESAIC_INLINE void finish(int64_t token, const State& state) const {
    const Best& best = state.best;
    bool good = !best.has_nan;
    Scalar sum = state.sum;
    MOESAIC_UNROLL
    for (int rank = 0; rank < Max; ++rank) {
      if (rank >= in.k) continue;
      if (in.kind == Gate::softmax_selected) sum += softmax_exp(best.value[rank] - best.value[0]);
      if (rank == 0 || in.kind == Gate::logit) good = good && is_finite(best.value[rank]);
    }
    MOESAIC_UNROLL
    for (int rank = 0; rank < Max; ++rank) {
      if (rank >= in.k) continue;
      const int64_t place = token * in.k + rank;
      Scalar weight = 1;
      if (in.kind == Gate::logit) weight = best.value[rank];
      if (in.kind == Gate::softmax_selected || in.kind == Gate::softmax_all) {
        weight = softmax_exp(best.value[rank] - best.value[0]) / sum;
      }
      in.choice[place] = best.expert[rank];
      in.slot[place] = in.kept.slot(best.expert[rank]);
      in.gate[place] = good ? weight : not_a_number<Scalar>();
    }
  }
};

}  // namespace moesaic::ops::kernels
