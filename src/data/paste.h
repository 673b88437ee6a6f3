// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include "moesaic/config/sides.h"
#include "moesaic/data/dataset.h"

namespace moesaic {

/// Writes an image [C, size.height, size.width] at `top`, `left` of `out` [C, H, W], whose shape is
/// that of `info`.
inline void paste(const std::vector<uint8_t>& image, Sides size, int64_t top, int64_t left,
                  const DatasetInfo& info, uint8_t* out) {
  for (int64_t c = 0; c < info.channels; ++c) {
    for (int64_t y = 0; y < size.height; ++y) {
      std::memcpy(out + (c * info.height + top + y) * info.width + left,
                  image.data() + (c * size.height + y) * size.width,
                  static_cast<size_t>(size.width));
    }
  }
}

}  // namespace moesaic
