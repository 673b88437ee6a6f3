// SPDX-License-Identifier: Apache-2.0
#include "channels.h"

#include <algorithm>
#include <utility>

namespace moesaic {

bool converts_channels(int64_t from, int64_t to) {
  const auto known = [](int64_t channels) { return channels == 1 || channels == 3; };
  return known(from) && known(to);
}

void convert_channels(Bitmap& bitmap, int64_t channels) {
  if (bitmap.channels == channels) return;
  const std::vector<uint8_t> pixels = std::exchange(bitmap.pixels, {});
  bitmap.channels = channels;
  if (channels == 3) {
    bitmap.pixels.resize(3 * pixels.size());
    for (size_t i = 0; i < pixels.size(); ++i) std::fill_n(&bitmap.pixels[3 * i], 3, pixels[i]);
    return;
  }
  bitmap.pixels.resize(pixels.size() / 3);
  for (size_t i = 0; i < bitmap.pixels.size(); ++i) {
    const uint32_t sum =
        19595u * pixels[3 * i] + 38470u * pixels[3 * i + 1] + 7471u * pixels[3 * i + 2];
    bitmap.pixels[i] = static_cast<uint8_t>((sum + 0x8000u) >> 16);
  }
}

std::vector<double> converted_values(const std::vector<double>& values, int64_t channels) {
  if (channels == 3 && values.size() == 1) return {values[0], values[0], values[0]};
  if (channels != 1 || values.size() != 3) return values;
  return {0.299 * values[0] + 0.587 * values[1] + 0.114 * values[2]};
}

}  // namespace moesaic
