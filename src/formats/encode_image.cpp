// SPDX-License-Identifier: Apache-2.0
#include "moesaic/formats/encode_image.h"

#include <png.h>
#include <turbojpeg.h>

#include <memory>

#include "moesaic/base/error.h"
#include "moesaic/base/text.h"

namespace moesaic {
namespace {

constexpr int64_t kMaxSide = 65500;

void check_pixels(const PixelView& image) {
  const auto within = [](int64_t side) { return side >= 1 && side <= kMaxSide; };
  if (image.channels != 1 && image.channels != 3) {
    fail("image files have 1 or 3 channels, not {}", image.channels);
  }
  if (!within(image.height) || !within(image.width)) {
    fail("an image file has 1 to {} pixels a side, not {} x {}", kMaxSide, image.height,
         image.width);
  }
  if (std::cmp_not_equal(image.pixels.size(), image.height * image.width * image.channels)) {
    fail("{} bytes are not {} x {} pixels", image.pixels.size(), image.height, image.width);
  }
}

/// Memory that libjpeg-turbo allocated.
struct FreeJpeg {
  void operator()(unsigned char* bytes) const { tjFree(bytes); }
};
struct DestroyCompressor {
  void operator()(void* handle) const { tjDestroy(handle); }
};

}  // namespace

std::string encode_jpeg(const PixelView& image, int quality) {
  check_pixels(image);
  const std::unique_ptr<void, DestroyCompressor> handle(tjInitCompress());
  if (handle == nullptr) fail("out of memory");
  const bool grey = image.channels == 1;
  unsigned char* raw = nullptr;
  unsigned long size = 0;
  const int result =
      tjCompress2(handle.get(), image.pixels.data(), static_cast<int>(image.width), 0,
                  static_cast<int>(image.height), grey ? TJPF_GRAY : TJPF_RGB, &raw, &size,
                  grey ? TJSAMP_GRAY : TJSAMP_420, quality, TJFLAG_ACCURATEDCT);
  const std::unique_ptr<unsigned char, FreeJpeg> bytes(raw);
  if (result != 0) fail("cannot be encoded: {}", one_line(tjGetErrorStr2(handle.get())));
  return {bytes.get(), bytes.get() + size};
}

std::string encode_png(const PixelView& image) {
  check_pixels(image);
  png_image header = {};
  header.version = PNG_IMAGE_VERSION;
  header.width = static_cast<png_uint_32>(image.width);
  header.height = static_cast<png_uint_32>(image.height);
  header.format = image.channels == 1 ? PNG_FORMAT_GRAY : PNG_FORMAT_RGB;
  std::string bytes(PNG_IMAGE_PNG_SIZE_MAX(header), '\0');
  png_alloc_size_t size = bytes.size();
  if (png_image_write_to_memory(&header, bytes.data(), &size, 0, image.pixels.data(), 0, nullptr) ==
      0) {
    fail("cannot be encoded: {}", one_line(header.message));
  }
  bytes.resize(size);
  return bytes;
}

}  // namespace moesaic
