// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>

namespace moesaic {

/// Returns the byte of a pixel that was normalised by (byte / 255 - mean) / std.
inline int pixel_byte(float value, double mean, double std) {
  return static_cast<int>(std::lround(std::clamp(255.0 * (value * std + mean), 0.0, 255.0)));
}

}  // namespace moesaic
