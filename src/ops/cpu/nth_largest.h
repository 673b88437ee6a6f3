// SPDX-License-Identifier: Apache-2.0
// Selection among keys (route_math.h: order_key), compiled for every instruction set.
#pragma once

#include <cstdint>
#include <vector>

namespace moesaic::ops {

/// Array of keys, padded with zeros to whole vectors.
template <class Key>
struct KeyRow {
  static constexpr int64_t kLanes = 32;

  void resize(int64_t count) {
    size = count;
    keys.assign((count + kLanes - 1) / kLanes * kLanes, 0);
  }

  std::vector<Key> keys;
  int64_t size = 0;
};

/// Border between the n largest keys and the others, for 1 <= n <= size: the n largest are all keys
/// above `key` and `equal` of those equal to it.
template <class Key>
struct KeyBorder {
  Key key;
  int64_t equal;
};

/// Finds the border bit by bit, from the highest, with one count of the keys for each.
template <class Key>
KeyBorder<Key> border_of_largest(const KeyRow<Key>& row, int64_t n);

template <>
KeyBorder<uint32_t> border_of_largest<uint32_t>(const KeyRow<uint32_t>&, int64_t);
template <>
KeyBorder<uint64_t> border_of_largest<uint64_t>(const KeyRow<uint64_t>&, int64_t);

}  // namespace moesaic::ops
