// SPDX-License-Identifier: Apache-2.0
// Overflow-checked arithmetic on sizes read from a file: overflow yields std::nullopt.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

namespace moesaic {

/// Returns a + b, nothing where it does not fit into 64 bits.
constexpr std::optional<uint64_t> checked_add(uint64_t a, uint64_t b) {
  if (b > UINT64_MAX - a) return std::nullopt;
  return a + b;
}

/// Returns a * b, nothing where it does not fit into 64 bits.
constexpr std::optional<uint64_t> checked_mul(uint64_t a, uint64_t b) {
  if (a != 0 && b > UINT64_MAX / a) return std::nullopt;
  return a * b;
}

/// Returns the product of `element` and of sizes none of which is negative.
constexpr std::optional<uint64_t> checked_product(uint64_t element,
                                                  std::span<const int64_t> sizes) {
  std::optional<uint64_t> product = element;
  for (size_t i = 0; i < sizes.size() && product; ++i) {
    product = checked_mul(*product, static_cast<uint64_t>(sizes[i]));
  }
  return product;
}

}  // namespace moesaic
