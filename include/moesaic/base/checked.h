// SPDX-License-Identifier: Apache-2.0
// Arithmetic on sizes that come from a file: nothing instead of a wrapped result.
#pragma once

#include <cstdint>
#include <optional>

namespace moesaic {

constexpr std::optional<uint64_t> checked_add(uint64_t a, uint64_t b) {
  if (b > UINT64_MAX - a) return std::nullopt;
  return a + b;
}

constexpr std::optional<uint64_t> checked_mul(uint64_t a, uint64_t b) {
  if (a != 0 && b > UINT64_MAX / a) return std::nullopt;
  return a * b;
}

}  // namespace moesaic
