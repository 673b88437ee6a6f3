// SPDX-License-Identifier: Apache-2.0
// Radix selection of the n-th of many candidates in a queue by falling value, earlier tokens first
// among equal values: eight bits of all candidates at a time, and nothing is sorted. A queue is
// searched by one block or, where it is long, by many. `Queues` describes all queues of a call:
//
//   int64_t count() const;                            // number of queues
//   static PlaceDigits digits(int64_t size, int64_t begin = 0);  // of positions in any of them
//   Queue at(int64_t queue) const;
//
// with, in each Queue, the `size` of all entries, how many candidates are accepted (`rank`), the
// `digits` of its positions, and
//
//   QueueEntry place(int64_t i) const;  // its position
#pragma once

#include <cstring>

#include "scan.h"

namespace moesaic::ops::kernels {

/// Returns an unsigned key in the order of the numbers: a < b exactly where order_key(a) <
/// order_key(b). Both zeros share one key. Keys serve radix selection.
MOESAIC_INLINE uint32_t order_key(float x) {
  const float value = x + 0.0f;  // The sum turns -0 into +0.
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

MOESAIC_INLINE uint64_t order_key(double x) {
  const double value = x + 0.0;
  uint64_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return (bits & 0x8000000000000000u) != 0 ? ~bits : bits | 0x8000000000000000u;
}

constexpr int kDigitBits = 8;
constexpr int kDigits = 1 << kDigitBits;
constexpr int kSelectThreads = 1024;

/// Position of an entry in the queue; the key is the complement of the value's order_key, which
/// fills only the lower half for float.
struct QueueEntry {
  uint64_t key;
  int64_t token;

  template <class Scalar>
  static MOESAIC_INLINE QueueEntry of(Scalar value, int64_t token) {
    return {~static_cast<uint64_t>(order_key(value)), token};
  }
};

/// Last accepted position of a queue.
struct Border {
  uint64_t key;
  int64_t token;

  MOESAIC_INLINE bool accepts(const QueueEntry& place) const {
    return place.key < key || (place.key == key && place.token <= token);
  }
};

/// What one digit tells: its value, the rank among the candidates with it, and how many there are.
struct FoundDigit {
  int32_t digit, rank, found;
};

MOESAIC_INLINE int64_t select_bytes(int threads) {
  return scan_bytes(threads) + static_cast<int64_t>(sizeof(int32_t)) * kDigits +
         static_cast<int64_t>(sizeof(FoundDigit));
}

/// Digits of a queue position: those of the key first, then those of the token.
struct PlaceDigits {
  int key_digits, token_digits;
  int64_t first_token;

  /// Returns the digits for keys of `key_bytes` bytes and `tokens` tokens from `first` on.
  static MOESAIC_INLINE PlaceDigits of(int key_bytes, int64_t first, int64_t tokens) {
    int digits = 1;
    while (digits < 4 && (tokens - 1) >> (digits * kDigitBits) != 0) ++digits;
    return {key_bytes, digits, first};
  }
  MOESAIC_INLINE int count() const { return key_digits + token_digits; }
  MOESAIC_INLINE int at(const QueueEntry& place, int digit) const {
    const bool in_key = digit < key_digits;
    const uint64_t word = in_key ? place.key : static_cast<uint64_t>(place.token - first_token);
    const int from_low = in_key ? key_digits - 1 - digit : key_digits + token_digits - 1 - digit;
    return static_cast<int>(word >> (from_low * kDigitBits) & (kDigits - 1));
  }
};

/// First digits of the searched position.
struct PlacePrefix {
  uint64_t key, key_mask;
  int64_t token, token_mask;  // Token relative to the first token, and its mask.

  MOESAIC_INLINE bool matches(const QueueEntry& place, int64_t first) const {
    return (place.key & key_mask) == key && ((place.token - first) & token_mask) == token;
  }
  MOESAIC_INLINE void append(const PlaceDigits& digits, int digit, int found) {
    const bool in_key = digit < digits.key_digits;
    const int last = in_key ? digits.key_digits - 1 : digits.count() - 1;
    const int shift = (last - digit) * kDigitBits;
    if (in_key) {
      key |= static_cast<uint64_t>(found) << shift;
      key_mask |= static_cast<uint64_t>(kDigits - 1) << shift;
    } else {
      token |= static_cast<int64_t>(found) << shift;
      token_mask |= static_cast<int64_t>(kDigits - 1) << shift;
    }
  }
  /// Returns a border that accepts all positions with this prefix and those before them.
  MOESAIC_INLINE Border border(const PlaceDigits& digits) const {
    const int64_t meant = (int64_t{1} << (digits.token_digits * kDigitBits)) - 1;
    return {~key_mask | key, digits.first_token + ((~token_mask & meant) | token)};
  }
};

/// Search for the border of a queue after some digits.
struct SelectState {
  PlacePrefix prefix;
  int32_t rank;  // Rank of the last accepted candidate among those with the prefix.
  bool is_done;  // All candidates with the prefix are accepted.

  /// Returns the state before the first digit; with nothing to decide it is done.
  template <class Queue>
  static MOESAIC_INLINE SelectState start(const Queue& queue) {
    return {{0, 0, 0, 0}, queue.rank, queue.rank <= 0 || queue.rank >= queue.size};
  }
};

/// Shared memory of a block during selection, select_bytes().
struct SelectShared {
  int32_t *work, *histogram;
  FoundDigit* found;

  template <class Block>
  static MOESAIC_INLINE SelectShared of(Block& block) {
    int32_t* const work = block.template shared<int32_t>(0);
    int32_t* const histogram = work + scan_bytes(block.threads()) / sizeof(int32_t);
    return {work, histogram, reinterpret_cast<FoundDigit*>(histogram + kDigits)};
  }
};

/// Counts a digit of the candidates with the prefix, in shared memory: those among the entries
/// first + thread, one `step` after the other.
template <class Block, class Queue>
MOESAIC_INLINE void count_digit(Block& block, const SelectShared& shared, const Queue& queue,
                                const SelectState& state, int digit, int64_t first, int64_t step) {
  block.each([&](int thread) {
    for (int i = thread; i < kDigits; i += block.threads()) shared.histogram[i] = 0;
  });
  block.each([&](int thread) {
    for (int64_t i = first + thread; i < queue.size; i += step) {
      const QueueEntry at = queue.place(i);
      if (state.prefix.matches(at, queue.digits.first_token)) {
        block.atomic_add(shared.histogram + queue.digits.at(at, digit), 1);
      }
    }
  });
}

/// Returns the state after a digit whose counts are in `histogram`.
template <class Block>
MOESAIC_INLINE SelectState after_digit(Block& block, const SelectShared& shared,
                                       const int32_t* histogram, SelectState state,
                                       const PlaceDigits& digits, int digit) {
  const int32_t rank = state.rank;
  exclusive_scan(
      block, shared.work, kDigits, [&](int64_t i) { return histogram[i]; },
      [&](int64_t i, int32_t before) {
        const int32_t here = histogram[i];
        if (before < rank && rank <= before + here) {
          *shared.found = {static_cast<int32_t>(i), rank - before, here};
        }
      });
  const FoundDigit found = block.broadcast(shared.found);
  state.prefix.append(digits, digit, found.digit);
  state.rank = found.rank;
  state.is_done = found.rank == found.found;
  return state;
}

/// Finds borders[queue], one queue per block. The border accepts rank() of the candidates, and all
/// entries where there is nothing to decide.
template <class Queues>
struct SelectBorders {
  Queues queues;
  Border* borders;

  template <class Block>
  MOESAIC_INLINE void operator()(Block& block) const {
    const auto queue = queues.at(block.index());
    const SelectShared shared = SelectShared::of(block);
    SelectState state = SelectState::start(queue);
    for (int digit = 0; digit < queue.digits.count() && !state.is_done; ++digit) {
      count_digit(block, shared, queue, state, digit, 0, block.threads());
      state = after_digit(block, shared, shared.histogram, state, queue.digits, digit);
    }
    block.each([&](int thread) {
      if (thread == 0) borders[block.index()] = state.prefix.border(queue.digits);
    });
  }
};

/// Does the same with `parts` blocks for each queue: a launch for each digit counts it, and one
/// more writes the borders. A block finds by itself what the digit before tells.
template <class Queues>
struct SelectDigit {
  Queues queues;
  int digit;
  int64_t parts;
  int32_t* histograms;  // [digits, queues, kDigits], zero before the first launch
  SelectState* states;  // [digits + 1, queues]
  Border* borders;

  template <class Block>
  MOESAIC_INLINE void operator()(Block& block) const {
    const int64_t number = block.index() / parts, part = block.index() % parts;
    const auto queue = queues.at(number);
    const SelectShared shared = SelectShared::of(block);
    SelectState state =
        digit == 0 ? SelectState::start(queue) : states[(digit - 1) * queues.count() + number];
    if (digit > 0 && !state.is_done) {
      state =
          after_digit(block, shared, histogram(digit - 1, number), state, queue.digits, digit - 1);
    }
    const bool last = digit == queue.digits.count();
    block.each([&](int thread) {
      if (thread != 0 || part != 0) return;
      states[digit * queues.count() + number] = state;
      if (last) borders[number] = state.prefix.border(queue.digits);
    });
    if (last || state.is_done) return;
    count_digit(block, shared, queue, state, digit, part * block.threads(),
                parts * block.threads());
    block.each([&](int thread) {
      for (int i = thread; i < kDigits; i += block.threads()) {
        if (shared.histogram[i] > 0) {
          block.atomic_add(histogram(digit, number) + i, shared.histogram[i]);
        }
      }
    });
  }

 private:
  MOESAIC_INLINE int32_t* histogram(int of_digit, int64_t number) const {
    return histograms + (of_digit * queues.count() + number) * kDigits;
  }
};

}  // namespace moesaic::ops::kernels
