// SPDX-License-Identifier: Apache-2.0
#include "nth_largest.h"

#include "vector_clones.h"

namespace moesaic::ops {
namespace {

template <class Key>
MOESAIC_IN_CLONE int64_t count_from(const Key* __restrict keys, int64_t size, Key min) {
  Key count = 0;
  for (int64_t i = 0; i < size; ++i) count += keys[i] >= min ? 1 : 0;
  return static_cast<int64_t>(count);
}

template <class Key>
MOESAIC_IN_CLONE KeyBorder<Key> find_border(const Key* keys, int64_t size, int64_t n) {
  Key border = 0;
  for (Key bit = Key(1) << (8 * sizeof(Key) - 1); bit != 0; bit >>= 1) {
    if (count_from(keys, size, border | bit) >= n) border |= bit;
  }
  const Key next = border + 1;  // The value wraps to 0 where no key is larger.
  return {border, n - (next == 0 ? 0 : count_from(keys, size, next))};
}

MOESAIC_VECTOR_CLONES KeyBorder<uint32_t> find_border_32(const uint32_t* keys, int64_t size,
                                                         int64_t n) {
  return find_border(keys, size, n);
}
MOESAIC_VECTOR_CLONES KeyBorder<uint64_t> find_border_64(const uint64_t* keys, int64_t size,
                                                         int64_t n) {
  return find_border(keys, size, n);
}

}  // namespace

template <>
KeyBorder<uint32_t> border_of_largest<uint32_t>(const KeyRow<uint32_t>& row, int64_t n) {
  return find_border_32(row.keys.data(), static_cast<int64_t>(row.keys.size()), n);
}

template <>
KeyBorder<uint64_t> border_of_largest<uint64_t>(const KeyRow<uint64_t>& row, int64_t n) {
  return find_border_64(row.keys.data(), static_cast<int64_t>(row.keys.size()), n);
}

}  // namespace moesaic::ops
