// SPDX-License-Identifier: Apache-2.0
// Radix selection of the n-th of many candidates in a queue by falling value, earlier tokens first
// among equal values. A block processes eight bits of all candidates at a time and never sorts.
#pragma once

#include <cstdint>

#include "../route_math.h"
#include "block.h"
#include "scan.h"

namespace moesaic::ops::kernels {

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
  MOESAIC_INLINE bool operator<(const QueueEntry& other) const {
    return key < other.key || (key == other.key && token < other.token);
  }
};

/// Last accepted position of a queue.
struct Border {
  uint64_t key;
  int64_t token;

  static MOESAIC_INLINE Border everything() { return {~uint64_t{0}, INT64_MAX}; }
  MOESAIC_INLINE bool accepts(const QueueEntry& place) const {
    return place.key < key || (place.key == key && place.token <= token);
  }
};

/// Shared state of a block during selection.
struct SelectShared {
  int32_t digit, rank, found;
};

MOESAIC_INLINE int64_t select_bytes(int threads) {
  return scan_bytes(threads) + static_cast<int64_t>(sizeof(int32_t)) * kDigits +
         static_cast<int64_t>(sizeof(SelectShared));
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

/// Returns the border that accepts exactly `rank` >= 1 of the candidates, which must be as many.
/// candidate(i) says whether place(i) takes part, for i < count. `shared` is select_bytes().
template <class Block, class Candidate, class PlaceOf>
MOESAIC_INLINE Border select_border(Block& block, char* shared, int64_t count, int32_t rank,
                                    const PlaceDigits& digits, const Candidate& candidate,
                                    const PlaceOf& place) {
  int32_t* const work = reinterpret_cast<int32_t*>(shared);
  int32_t* const histogram = work + scan_bytes(block.threads()) / sizeof(int32_t);
  SelectShared* const result = reinterpret_cast<SelectShared*>(histogram + kDigits);
  PlacePrefix prefix{0, 0, 0, 0};
  for (int digit = 0; digit < digits.count(); ++digit) {
    block.each([&](int thread) {
      for (int i = thread; i < kDigits; i += block.threads()) histogram[i] = 0;
    });
    block.each([&](int thread) {
      for (int64_t i = thread; i < count; i += block.threads()) {
        if (!candidate(i)) continue;
        const QueueEntry at = place(i);
        if (prefix.matches(at, digits.first_token))
          block.atomic_add(histogram + digits.at(at, digit), 1);
      }
    });
    exclusive_scan(
        block, work, kDigits, [&](int64_t i) { return histogram[i]; },
        [&](int64_t i, int32_t before) {
          const int32_t here = histogram[i];
          if (before < rank && rank <= before + here) {
            *result = {static_cast<int32_t>(i), rank - before, here};
          }
        });
    const SelectShared found = block.broadcast(result);
    prefix.append(digits, digit, found.digit);
    rank = found.rank;
    if (found.rank == found.found) break;  // All with this prefix are accepted.
  }
  return prefix.border(digits);
}

}  // namespace moesaic::ops::kernels
