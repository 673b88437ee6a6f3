// SPDX-License-Identifier: Apache-2.0
// Kernels of expert choice: scores, a border for every expert of every group, the rule by which the
// kernels of route_rule.h make rows of them, and the gradients of the gates.
#pragma once

#include <cstdint>

#include "../route_math.h"
#include "../route_segments.h"
#include "block.h"
#include "kept_experts.h"
#include "number.h"
#include "select.h"

namespace moesaic::ops::kernels {

/// Enumerators with the numbers of moesaic::ExpertGate.
enum class ExpertGateKind : int { softmax_selected, softmax_tokens, softmax_experts, one };

/// Subset of a router's experts, numbered by their slot in it.
struct ExpertColumns {
  int32_t slots;
  KeptView kept;

  MOESAIC_INLINE int64_t column(int64_t slot) const { return kept.column(slot); }
};

/// Writes scores[slot, t], which the experts in `written` compare; a score's neighbours are tokens
/// of the same expert. One thread per token.
template <class Scalar>
struct WriteScores {
  const Scalar* logits;
  int64_t tokens, experts;
  ExpertColumns written, seen;
  bool over_experts;  // Scores are a softmax over the experts in `seen` instead of logits.
  Scalar* scores;

  template <class Block>
  MOESAIC_INLINE void operator()(Block& block) const {
    block.each([&](int thread) {
      const int64_t token = block.index() * block.threads() + thread;
      if (token >= tokens) return;
      const Scalar* const from = logits + token * experts;
      Scalar top = -infinity<Scalar>(), sum = 0;
      bool good = true;
      for (int32_t slot = 0; slot < seen.slots && over_experts; ++slot) {
        const Scalar at = from[seen.column(slot)];
        good = good && at == at;
        top = at > top ? at : top;
      }
      for (int32_t slot = 0; slot < seen.slots && over_experts; ++slot) {
        sum += softmax_exp(from[seen.column(slot)] - top);
      }
      if (over_experts && !(good && is_finite(top))) sum = not_a_number<Scalar>();
      for (int32_t slot = 0; slot < written.slots; ++slot) {
        const Scalar at = from[written.column(slot)];
        scores[slot * tokens + token] = over_experts ? softmax_exp(at - top) / sum : at;
      }
    });
  }
};

/// Reduces the threads' numbers `partial` in shared memory with `operation`, in a fixed order. The
/// number of threads is a power of two.
template <class Block, class Scalar, class Operation>
MOESAIC_INLINE Scalar reduce(Block& block, Scalar* partial, const Operation& operation) {
  for (int half = block.threads() / 2; half > 0; half /= 2) {
    block.each([&](int thread) {
      if (thread < half) partial[thread] = operation(partial[thread], partial[thread + half]);
    });
  }
  return block.broadcast(partial);
}

/// Border of the tokens that an expert selects in a group, and the softmax of its gates.
template <class Scalar>
struct ExpertBorder {
  Border last;
  Scalar top, sum;
};

/// Finds borders[group, slot], one per block.
template <class Scalar>
struct FindExpertBorders {
  TokenGroups cut;
  GroupRows rows;
  int32_t slots;
  ExpertGateKind kind;
  const Scalar* scores;  // [slots, T]
  ExpertBorder<Scalar>* borders;

  static MOESAIC_INLINE int64_t shared_bytes(int threads) {
    return select_bytes(threads) + 16 + static_cast<int64_t>(sizeof(Scalar)) * threads;
  }

  template <class Block>
  MOESAIC_INLINE void operator()(Block& block) const {
    const int64_t group = block.index() / slots;
    const int64_t begin = cut.begin(group), size = cut.size(group), count = rows.of(group);
    const Scalar* const own = scores + block.index() % slots * cut.tokens + begin;
    Scalar* const partial =
        block.template shared<Scalar>((select_bytes(block.threads()) + 15) / 16 * 16);
    ExpertBorder<Scalar> border{Border::everything(), maximum(block, partial, own, size), 1};
    if (count < size) {
      border.last = select_border(
          block, block.template shared<char>(0), size, static_cast<int32_t>(count),
          PlaceDigits::of(sizeof(Scalar), begin, size), [](int64_t) { return true; },
          [&](int64_t i) { return QueueEntry::of(own[i], begin + i); });
    }
    border.sum = softmax_sum(block, partial, own, begin, size, border);
    block.each([&](int thread) {
      if (thread == 0) borders[block.index()] = border;
    });
  }

 private:
  /// Returns the largest score; NaN where a score is NaN or none is finite.
  template <class Block>
  MOESAIC_INLINE Scalar maximum(Block& block, Scalar* partial, const Scalar* own,
                                int64_t size) const {
    block.each([&](int thread) {
      Scalar top = -infinity<Scalar>();
      bool nan = false;
      for (int64_t i = thread; i < size; i += block.threads()) {
        top = own[i] > top ? own[i] : top;
        nan = nan || own[i] != own[i];
      }
      partial[thread] = nan ? not_a_number<Scalar>() : top;
    });
    const Scalar top = reduce(block, partial, [](Scalar a, Scalar b) {
      if (a != a || b != b) return a + b;
      return a > b ? a : b;
    });
    return is_finite(top) ? top : not_a_number<Scalar>();
  }

  template <class Block>
  MOESAIC_INLINE Scalar softmax_sum(Block& block, Scalar* partial, const Scalar* own, int64_t begin,
                                    int64_t size, const ExpertBorder<Scalar>& border) const {
    if (kind != ExpertGateKind::softmax_selected && kind != ExpertGateKind::softmax_tokens)
      return 1;
    const bool all = kind == ExpertGateKind::softmax_tokens;
    block.each([&](int thread) {
      Scalar sum = 0;
      for (int64_t i = thread; i < size; i += block.threads()) {
        if (all || border.last.accepts(QueueEntry::of(own[i], begin + i))) {
          sum += softmax_exp(own[i] - border.top);
        }
      }
      partial[thread] = sum;
    });
    return reduce(block, partial, [](Scalar a, Scalar b) { return a + b; });
  }
};

template <class Scalar>
struct ExpertChoiceRule {
  const Scalar* scores;  // [slots, T]
  const ExpertBorder<Scalar>* borders;
  TokenGroups cut;
  int32_t slots;
  ExpertGateKind kind;

  MOESAIC_INLINE const ExpertBorder<Scalar>& border(int64_t token, int32_t slot) const {
    return borders[cut.of(token) * slots + slot];
  }
  MOESAIC_INLINE Scalar score(int64_t token, int32_t slot) const {
    return scores[slot * cut.tokens + token];
  }
  MOESAIC_INLINE bool selects(int64_t token, int32_t slot) const {
    return border(token, slot).last.accepts(QueueEntry::of(score(token, slot), token));
  }
  MOESAIC_INLINE Scalar gate(int64_t token, int32_t slot) const {
    const ExpertBorder<Scalar>& at = border(token, slot);
    if (at.top != at.top) return at.top;
    if (kind == ExpertGateKind::one) return 1;
    if (kind == ExpertGateKind::softmax_experts) return score(token, slot);
    return softmax_exp(score(token, slot) - at.top) / at.sum;
  }
};

/// Sets to[token[r], column of r's expert] = from[r]; each place is written at most once.
template <class Scalar>
struct ScatterRows {
  const Scalar* from;
  const int32_t* token;
  int64_t rows, rows_each, experts;
  KeptView kept;
  Scalar* to;

  template <class Block>
  MOESAIC_INLINE void operator()(Block& block) const {
    block.each([&](int thread) {
      const int64_t r = block.index() * block.threads() + thread;
      if (r < rows) to[token[r] * experts + kept.column(r / rows_each)] = from[r];
    });
  }
};

/// Computes the gradient of gates by a softmax over experts, in place: grad holds d loss / d gate
/// on entry and d loss / d logits on return. One thread per token.
template <class Scalar>
struct SoftmaxGradient {
  const Scalar* probabilities;  // Probabilities from WriteScores for all experts in `seen`.
  int64_t tokens, experts;
  ExpertColumns seen;
  Scalar* grad;

  template <class Block>
  MOESAIC_INLINE void operator()(Block& block) const {
    block.each([&](int thread) {
      const int64_t token = block.index() * block.threads() + thread;
      if (token >= tokens) return;
      Scalar* const own = grad + token * experts;
      Scalar inner = 0;
      for (int32_t slot = 0; slot < seen.slots; ++slot) {
        inner += probabilities[slot * tokens + token] * own[seen.column(slot)];
      }
      for (int32_t slot = 0; slot < seen.slots; ++slot) {
        Scalar& at = own[seen.column(slot)];
        at = probabilities[slot * tokens + token] * (at - inner);
      }
    });
  }
};

/// Computes the gradient of gates by a softmax over tokens. One block per group and expert;
/// grad_logits is zero on entry.
template <class Scalar>
struct ExpertGatesGradient {
  const Scalar *grad_gate, *gates;  // [rows]
  const int32_t* token;             // [rows]
  const Scalar* scores;             // [slots, T]
  TokenGroups cut;
  GroupRows rows;
  int64_t experts;
  int32_t slots;
  KeptView kept;
  bool over_all_tokens;  // Gate is softmax_tokens instead of softmax_selected.
  Scalar* grad_logits;

  static MOESAIC_INLINE int64_t shared_bytes(int threads) {
    return static_cast<int64_t>(sizeof(Scalar)) * threads;
  }

  template <class Block>
  MOESAIC_INLINE void operator()(Block& block) const {
    Scalar* const partial = block.template shared<Scalar>(0);
    const int64_t group = block.index() / slots, slot = block.index() % slots;
    const int64_t first = slot * rows.total() + rows.before(group), count = rows.of(group);
    Scalar* const to = grad_logits + kept.column(slot);
    block.each([&](int thread) {
      Scalar sum = 0;
      for (int64_t i = thread; i < count; i += block.threads()) {
        sum += gates[first + i] * grad_gate[first + i];
      }
      partial[thread] = sum;
    });
    const Scalar inner = reduce(block, partial, [](Scalar a, Scalar b) { return a + b; });
    if (over_all_tokens) write_softmax_terms(block, partial, group, slot, inner, to);
    block.each([&](int thread) {
      for (int64_t i = thread; i < count; i += block.threads()) {
        const Scalar arriving = gates[first + i] * grad_gate[first + i];
        const Scalar others = over_all_tokens ? Scalar(0) : gates[first + i] * inner;
        to[token[first + i] * experts] += arriving - others;
      }
    });
  }

 private:
  /// Writes -probability * inner, the softmax's share in the gradient of every token.
  template <class Block>
  MOESAIC_INLINE void write_softmax_terms(Block& block, Scalar* partial, int64_t group,
                                          int64_t slot, Scalar inner, Scalar* to) const {
    const int64_t begin = cut.begin(group), size = cut.size(group);
    const Scalar* const own = scores + slot * cut.tokens + begin;
    block.each([&](int thread) {
      Scalar top = -infinity<Scalar>();
      for (int64_t i = thread; i < size; i += block.threads()) top = own[i] > top ? own[i] : top;
      partial[thread] = top;
    });
    const Scalar top = reduce(block, partial, [](Scalar a, Scalar b) { return a > b ? a : b; });
    block.each([&](int thread) {
      Scalar sum = 0;
      for (int64_t i = thread; i < size; i += block.threads()) sum += softmax_exp(own[i] - top);
      partial[thread] = sum;
    });
    const Scalar sum = reduce(block, partial, [](Scalar a, Scalar b) { return a + b; });
    block.each([&](int thread) {
      for (int64_t i = thread; i < size; i += block.threads()) {
        to[(begin + i) * experts] = -(softmax_exp(own[i] - top) / sum * inner);
      }
    });
  }
};

}  // namespace moesaic::ops::kernels
