// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace moesaic {

/// Height and width of a rectangle; a setting of this type is one number, or [height, width].
struct Size2d {
  int64_t height = 0, width = 0;

  constexpr Size2d() = default;
  /// A square.
  constexpr Size2d(int64_t side) : height(side), width(side) {}  // NOLINT: One number is a square.
  /// Any rectangle.
  constexpr Size2d(int64_t height_, int64_t width_) : height(height_), width(width_) {}

  /// Returns whether both sides are equal.
  constexpr bool is_square() const { return height == width; }
  friend constexpr bool operator==(const Size2d&, const Size2d&) = default;
};

}  // namespace moesaic
