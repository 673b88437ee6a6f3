// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "moesaic/formats/image.h"

namespace moesaic::test {

/// An image of RGB bytes [height, width, 3].
struct RgbImage {
  int64_t height = 0, width = 0;
  std::vector<uint8_t> pixels;
};

/// Decodes a whole file at full size.
inline RgbImage decode_image(std::span<const uint8_t> file, bool applies_exif = false) {
  ImageDecoder decoder(file, applies_exif);
  RgbImage image{decoder.height(), decoder.width(), {}};
  decoder.decode(1, image.pixels);
  return image;
}

inline RgbImage decode_image(const std::string& file) {
  return decode_image({reinterpret_cast<const uint8_t*>(file.data()), file.size()});
}

}  // namespace moesaic::test
