// SPDX-License-Identifier: Apache-2.0
// The file that a shard holds of one image.
#pragma once

#include <cstdint>
#include <string>

#include "moesaic/data/dataset.h"

namespace moesaic {

struct PackedImage {
  std::string bytes;
  const char* extension = "jpg";  ///< Or "png" or "webp".
};

/// Returns the file of an image whose shorter side is at most `size` pixels; 0: as it is. Throws
/// ImageError if it cannot be read.
PackedImage packed_image(const Dataset& dataset, int64_t index, int64_t size, int64_t quality);

}  // namespace moesaic
