// SPDX-License-Identifier: Apache-2.0
// Overflow-checked arithmetic on sizes read from a file: overflow yields std::nullopt.
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
