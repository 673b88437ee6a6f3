// SPDX-License-Identifier: Apache-2.0
#include "packed_image.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "moesaic/formats/image.h"

namespace moesaic {
namespace {

struct ImageSize {
  int64_t height = 0, width = 0;
  int64_t shorter() const { return std::min(height, width); }
};

/// Returns the size of a file's image. Throws ImageError for what is no image.
ImageSize size_of(const EncodedImage& file) {
  try {
    const auto* bytes = reinterpret_cast<const uint8_t*>(file.bytes.data());
    const ImageDecoder decoder({bytes, file.bytes.size()}, file.upright);
    return {decoder.height(), decoder.width()};
  } catch (const Error& error) {
    throw ImageError(fmt::format("{}: {}", file.name, error.what()));
  }
}

PackedImage as_it_is(EncodedImage file) {
  const char* const extension = file.bytes.starts_with("\x89PNG") ? "png"
                                : file.bytes.starts_with("RIFF")  ? "webp"
                                                                  : "jpg";
  return {std::move(file.bytes), extension};
}

/// Returns an image of bytes [C, H, W] with its channels last.
std::vector<uint8_t> channels_last(const std::vector<uint8_t>& planes, int64_t channels) {
  const size_t count = static_cast<size_t>(channels), plane = planes.size() / count;
  std::vector<uint8_t> pixels(planes.size());
  for (size_t c = 0; c < count; ++c) {
    for (size_t i = 0; i < plane; ++i) pixels[i * count + c] = planes[c * plane + i];
  }
  return pixels;
}

/// Returns an image's pixels, its shorter side `size` or as large as it is.
PackedImage encoded_pixels(const Dataset& dataset, int64_t index, int64_t size, int64_t quality) {
  ImageSize full;
  const auto whole = [&](int64_t h, int64_t w) {
    full = {h, w};
    return Rectangle{0, 0, h, w};
  };
  Bitmap bitmap;
  const int64_t min = size > 0 ? size : std::numeric_limits<int64_t>::max();
  const Rectangle part = dataset.decode(index, whole, min, bitmap);
  const int64_t channels = bitmap.channels;
  if (size == 0 || full.shorter() <= size) {
    return {encode_png({bitmap.pixels, bitmap.height, bitmap.width, channels}), "png"};
  }
  const double scale = static_cast<double>(size) / static_cast<double>(full.shorter());
  const auto scaled = [&](int64_t side) {
    return std::max<int64_t>(1, std::llround(scale * static_cast<double>(side)));
  };
  const int64_t height = scaled(full.height), width = scaled(full.width);
  std::vector<uint8_t> planes(static_cast<size_t>(channels * height * width));
  resize(bitmap, part, {}, height, width, planes.data());
  const std::vector<uint8_t> pixels = channels_last(planes, channels);
  return {encode_jpeg({pixels, height, width, channels}, static_cast<int>(quality)), "jpg"};
}

}  // namespace

PackedImage packed_image(const Dataset& dataset, int64_t index, int64_t size, int64_t quality) {
  std::optional<EncodedImage> file = dataset.encoded(index);
  if (file) {
    const ImageSize stored = size_of(*file);
    if (size == 0 || stored.shorter() <= size) return as_it_is(std::move(*file));
  }
  return encoded_pixels(dataset, index, size, quality);
}

}  // namespace moesaic
