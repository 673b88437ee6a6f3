// SPDX-License-Identifier: Apache-2.0
// Chooses how many numbers of a row one memory access moves.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <type_traits>

#include "../kernels/number.h"

namespace moesaic::ops::kernels {

/// Calls body(integral_constant) with the count of numbers in 16 bytes if rows of `width` and all
/// addresses are aligned (null is), else with 1.
template <class T, class Body>
void with_pieces(int64_t width, std::initializer_list<const void*> addresses, const Body& body) {
  bool wide = width % kWide<T> == 0;
  for (const void* address : addresses) {
    wide = wide && reinterpret_cast<uintptr_t>(address) % 16 == 0;
  }
  if (wide) {
    body(std::integral_constant<int, kWide<T>>());
  } else {
    body(std::integral_constant<int, 1>());
  }
}

}  // namespace moesaic::ops::kernels
