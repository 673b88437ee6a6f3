// SPDX-License-Identifier: Apache-2.0
// Encodes pixels as image files.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace moesaic {

/// Pixels [height, width, channels] of bytes; channels is 1 (grey) or 3 (RGB).
struct PixelView {
  std::span<const uint8_t> pixels;
  int64_t height = 0, width = 0, channels = 0;
};

/// Returns a JPEG file; `quality` is 1 to 100, colours are subsampled 4:2:0. Throws Error (failure)
/// for other channels and for sizes that the format does not allow.
std::string encode_jpeg(const PixelView& image, int quality);

/// Returns a PNG file, which decodes to the same bytes. Throws Error (failure) as encode_jpeg().
std::string encode_png(const PixelView& image);

}  // namespace moesaic
