// SPDX-License-Identifier: Apache-2.0
// Kernels of expert choice: scores, a border for every expert of every group (select.h), and
// the rule by which rows are made of them.
#pragma once

#include "moesaic/ops/route_options.h"
#include "moesaic/ops/softmax_exp.h"
#include "number.h"
#include "route_rows.h"
#include "select.h"

namespace moesaic::ops::kernels {

/// Writes scores[slot, t], which the computed experts compare; a score's neighbours are tokens
/// of the same expert. One thread per token.
template <class Scalar>
struct WriteScores {
  const Scalar* logits;
  int64_t tokens, experts;
  int32_t slots;  // Number of computed experts, those of `kept`.
  KeptView kept;
  bool is_over_experts;  // Scores are a softmax over experts instead of logits.
  bool includes_pruned;  // This softmax includes experts that are not computed.
  Scalar* scores;

  template <class Block>
  MOESAIC_INLINE void operator()(Block& block) const {
    block.each([&](int thread) {
      const int64_t token = block.index() * block.threads() + thread;
      if (token >= tokens) return;
      const Scalar* const from = logits + token * experts;
      Scalar top = -infinity<Scalar>(), sum = 0;
      bool good = true;
      const KeptView seen = includes_pruned ? KeptView{nullptr, nullptr} : kept;
      const int64_t terms = !is_over_experts ? 0 : includes_pruned ? experts : slots;
      for (int64_t slot = 0; slot < terms; ++slot) {
        const Scalar at = from[seen.column(slot)];
        good = good && at == at;
        top = at > top ? at : top;
      }
      for (int64_t slot = 0; slot < terms; ++slot) {
        sum += softmax_exp(from[seen.column(slot)] - top);
      }
      if (is_over_experts && !(good && is_finite(top))) sum = not_a_number<Scalar>();
      for (int32_t slot = 0; slot < slots; ++slot) {
        const Scalar at = from[kept.column(slot)];
        scores[slot * tokens + token] = is_over_experts ? softmax_exp(at - top) / sum : at;
      }
    });
  }
};

/// Writes to[block], the numbers part_of(thread) reduced with `operation`, in a fixed order. The
/// number of threads is a power of two; shared memory holds a number of each.
template <class Block, class Scalar, class PartOf, class Operation>
MOESAIC_INLINE void reduce(Block& block, const PartOf& part_of, Scalar* to,
                           const Operation& operation) {
  Scalar* const partial = block.template shared<Scalar>(0);
  block.each([&](int thread) { partial[thread] = part_of(thread); });
  for (int half = block.threads() / 2; half > 0; half /= 2) {
    block.each([&](int thread) {
      if (thread < half) partial[thread] = operation(partial[thread], partial[thread + half]);
    });
  }
  block.each([&](int thread) {
    if (thread == 0) to[block.index()] = partial[0];
  });
}

/// Queues [group, slot] of an expert's scores in a group, each of which `parts` blocks share out.
template <class Scalar>
struct ExpertQueues {
  TokenGroups cut;
  GroupRows rows;
  int32_t slots;
  int64_t parts;
  const Scalar* scores;  // [slots, T]

  struct Queue {
    int64_t begin, size;
    int32_t rank;
    PlaceDigits digits;
    const Scalar* score;

    MOESAIC_INLINE QueueEntry place(int64_t i) const { return QueueEntry::of(score[i], begin + i); }
  };

  MOESAIC_INLINE int64_t count() const { return cut.count() * slots; }
  static MOESAIC_INLINE PlaceDigits digits(int64_t size, int64_t begin = 0) {
    return PlaceDigits::of(sizeof(Scalar), begin, size);
  }
  MOESAIC_INLINE int64_t blocks() const { return count() * parts; }
  MOESAIC_INLINE Queue at(int64_t queue) const {
    const int64_t group = queue / slots, begin = cut.begin(group);
    return {begin, cut.size(group), static_cast<int32_t>(rows.of(group)),
            digits(cut.group_size, begin), scores + queue % slots * cut.tokens + begin};
  }

  /// Calls visit(i) for the entries i < size of a queue that are this thread's.
  template <class Block, class Visit>
  MOESAIC_INLINE void share(const Block& block, int thread, int64_t size,
                            const Visit& visit) const {
    const int64_t first = block.index() % parts * block.threads() + thread;
    for (int64_t i = first; i < size; i += parts * block.threads()) visit(i);
  }
};

/// Returns the larger number; NaN where one is.
template <class Scalar>
MOESAIC_INLINE Scalar larger(Scalar a, Scalar b) {
  if (a != a || b != b) return a + b;
  return a > b ? a : b;
}

/// Writes the largest score of every part to tops[queue, part].
template <class Scalar>
struct FindTops {
  ExpertQueues<Scalar> queues;
  Scalar* tops;

  static MOESAIC_INLINE int64_t shared_bytes(int threads) {
    return static_cast<int64_t>(sizeof(Scalar)) * threads;
  }

  template <class Block>
  MOESAIC_INLINE void operator()(Block& block) const {
    const auto queue = queues.at(block.index() / queues.parts);
    const auto top_of = [&](int thread) {
      Scalar top = -infinity<Scalar>();
      queues.share(block, thread, queue.size,
                   [&](int64_t i) { top = larger(top, queue.score[i]); });
      return top;
    };
    reduce(block, top_of, tops, [](Scalar a, Scalar b) { return larger(a, b); });
  }
};

/// Softmax over scores of a queue from its parts.
template <class Scalar>
struct PartialSoftmax {
  const Scalar *tops, *sums;  // [queue, part]; without `sums`, the sum is 1.
  int64_t parts;

  /// Returns the largest score; NaN where one is NaN or none is finite.
  MOESAIC_INLINE Scalar top(int64_t queue) const {
    Scalar found = -infinity<Scalar>();
    for (int64_t i = 0; i < parts; ++i) found = larger(found, tops[queue * parts + i]);
    return is_finite(found) ? found : not_a_number<Scalar>();
  }
  MOESAIC_INLINE Scalar sum(int64_t queue) const {
    if (sums == nullptr) return 1;
    Scalar found = 0;
    for (int64_t i = 0; i < parts; ++i) found += sums[queue * parts + i];
    return found;
  }
};

/// Writes the sums of the terms of each part's softmax to sums[queue, part]: over the tokens within
/// the borders, or without borders over all.
template <class Scalar>
struct SumTerms {
  ExpertQueues<Scalar> queues;
  PartialSoftmax<Scalar> softmax;
  const Border* borders;
  Scalar* sums;

  static MOESAIC_INLINE int64_t shared_bytes(int threads) {
    return static_cast<int64_t>(sizeof(Scalar)) * threads;
  }

  template <class Block>
  MOESAIC_INLINE void operator()(Block& block) const {
    const int64_t number = block.index() / queues.parts;
    const auto queue = queues.at(number);
    const Scalar top = softmax.top(number);
    const auto sum_of = [&](int thread) {
      Scalar sum = 0;
      queues.share(block, thread, queue.size, [&](int64_t i) {
        if (borders == nullptr || borders[number].accepts(queue.place(i))) {
          sum += softmax_exp(queue.score[i] - top);
        }
      });
      return sum;
    };
    reduce(block, sum_of, sums, [](Scalar a, Scalar b) { return a + b; });
  }
};

/// Whether an expert has a token, and its gate.
template <class Scalar>
struct ExpertChoiceRule {
  const Scalar* scores;   // [slots, T]
  const Border* borders;  // [group, slot]
  PartialSoftmax<Scalar> softmax;
  TokenGroups cut;
  int32_t slots;
  Gate kind;

  MOESAIC_INLINE int64_t queue(int64_t token, int32_t slot) const {
    return cut.of(token) * slots + slot;
  }
  MOESAIC_INLINE Scalar score(int64_t token, int32_t slot) const {
    return scores[slot * cut.tokens + token];
  }
  MOESAIC_INLINE bool selects(int64_t token, int32_t slot) const {
    return borders[queue(token, slot)].accepts(QueueEntry::of(score(token, slot), token));
  }
  MOESAIC_INLINE Scalar gate(int64_t token, int32_t slot) const {
    const Scalar top = softmax.top(queue(token, slot));
    if (top != top) return top;
    if (kind == Gate::one) return 1;
    if (kind == Gate::softmax_all) return score(token, slot);
    return softmax_exp(score(token, slot) - top) / softmax.sum(queue(token, slot));
  }
};

/// Counts rows[slot, segment]: how many tokens of the segment the expert has.
template <class Scalar>
struct CountRule {
  Segments segments;
  int64_t count;
  int32_t slots;
  ExpertChoiceRule<Scalar> rule;
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
template <class Scalar>
struct PlaceRule {
  Segments segments;
  SegmentRows rows;
  ExpertChoiceRule<Scalar> rule;
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
