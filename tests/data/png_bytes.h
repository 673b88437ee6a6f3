// SPDX-License-Identifier: Apache-2.0
// PNG files made in memory.
#pragma once

#include <png.h>

#include <array>
#include <cstdint>
#include <stdexcept>

#include "formats/bytes.h"

namespace moesaic::test {

/// An image of RGB bytes [height, width, 3].
inline Bytes png_bytes(uint32_t height, uint32_t width, const Bytes& rgb) {
  png_image image = {};
  image.version = PNG_IMAGE_VERSION;
  image.height = height;
  image.width = width;
  image.format = PNG_FORMAT_RGB;
  Bytes bytes(rgb.size() + 1000);
  png_alloc_size_t size = bytes.size();
  if (png_image_write_to_memory(&image, bytes.data(), &size, 0, rgb.data(), 0, nullptr) == 0) {
    throw std::runtime_error("the test's PNG cannot be made");
  }
  bytes.resize(size);
  return bytes;
}

/// An image of one colour.
inline Bytes plain_png_bytes(uint32_t height, uint32_t width, std::array<uint8_t, 3> colour) {
  Bytes pixels(size_t{3} * height * width);
  for (size_t i = 0; i < pixels.size(); ++i) pixels[i] = colour[i % 3];
  return png_bytes(height, width, pixels);
}

}  // namespace moesaic::test
