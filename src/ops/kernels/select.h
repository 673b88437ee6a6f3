// SPDX-License-Identifier: Apache-2.0
// Selection of the largest numbers of long rows by radix: eight bits of all keys at a time, and
// nothing is sorted.
#pragma once

#include <cstdint>

#include "../route_math.h"
#include "block.h"
#include "scan.h"

namespace moesaic::ops::kernels {

constexpr int kDigits = 256;

/// Finds the `wanted` largest numbers of each row, 0 < wanted <= size. Each row is shared out among
/// `parts` blocks of kDigits threads. A launch for each step counts a digit of the keys; one more
/// marks the numbers that are larger than the least of them, those that equal it, and how many of
/// the latter are wanted. A block finds by itself what the step before tells.
template <class Scalar>
struct SelectLargest {
  /// Falling numbers have ascending keys.
  using Key = decltype(order_key(Scalar()));
  static constexpr int kSteps = sizeof(Key);

  /// First digits of the last wanted key, and how many keys that begin like it are wanted.
  struct State {
    Key last;
    int32_t rank;
  };

  const Scalar* numbers;  // [count, size]
  int64_t count, size;
  int32_t wanted;
  int64_t parts;
  int step;
  int32_t* histograms;    // [kSteps, count, kDigits], zero before the first step
  State* states;          // [kSteps + 1, count]
  bool *larger, *equal;   // [count, size]
  int32_t* wanted_equal;  // [count]

  static MOESAIC_INLINE int64_t shared_bytes(int threads) {
    return static_cast<int64_t>(sizeof(State)) + scan_bytes(threads) +
           static_cast<int64_t>(sizeof(int32_t)) * kDigits;
  }

  template <class Block>
  MOESAIC_INLINE void operator()(Block& block) const {
    const int64_t row = block.index() / parts, part = block.index() % parts;
    const int64_t first = part * block.threads(), stride = parts * block.threads();
    const State state = step == 0 ? State{0, wanted} : after_step(block, row);
    const Key known = step == 0 ? Key(0) : static_cast<Key>(~Key(0) << shift(step - 1));
    block.each([&](int thread) {
      if (thread != 0 || part != 0) return;
      states[step * count + row] = state;
      if (step == kSteps) wanted_equal[row] = state.rank;
    });
    if (step == kSteps) {
      block.each([&](int thread) {
        for (int64_t i = first + thread; i < size; i += stride) {
          larger[row * size + i] = key(row, i) < state.last;
          equal[row * size + i] = key(row, i) == state.last;
        }
      });
      return;
    }
    int32_t* const own =
        block.template shared<int32_t>(sizeof(State) + scan_bytes(block.threads()));
    block.each([&](int thread) {
      for (int i = thread; i < kDigits; i += block.threads()) own[i] = 0;
    });
    block.each([&](int thread) {
      for (int64_t i = first + thread; i < size; i += stride) {
        if ((key(row, i) & known) != state.last) continue;
        block.atomic_add(own + static_cast<int>(key(row, i) >> shift(step) & (kDigits - 1)), 1);
      }
    });
    block.each([&](int thread) {
      for (int i = thread; i < kDigits; i += block.threads()) {
        if (own[i] > 0) block.atomic_add(histogram(step, row) + i, own[i]);
      }
    });
  }

 private:
  static MOESAIC_INLINE int shift(int of_step) { return 8 * (kSteps - 1 - of_step); }
  MOESAIC_INLINE Key key(int64_t row, int64_t i) const {
    return static_cast<Key>(~order_key(numbers[row * size + i]));
  }
  MOESAIC_INLINE int32_t* histogram(int of_step, int64_t row) const {
    return histograms + (of_step * count + row) * kDigits;
  }

  /// Returns the state after the step before, whose counts are complete.
  template <class Block>
  MOESAIC_INLINE State after_step(Block& block, int64_t row) const {
    const State before = states[(step - 1) * count + row];
    const int32_t* const counts = histogram(step - 1, row);
    State* const found = block.template shared<State>(0);
    exclusive_scan(
        block, block.template shared<int32_t>(sizeof(State)), kDigits,
        [&](int64_t i) { return counts[i]; },
        [&](int64_t i, int32_t smaller) {
          if (smaller < before.rank && before.rank <= smaller + counts[i]) {
            *found = {before.last | static_cast<Key>(i) << shift(step - 1), before.rank - smaller};
          }
        });
    return block.broadcast(found);
  }
};

}  // namespace moesaic::ops::kernels
