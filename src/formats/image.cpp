// SPDX-License-Identifier: Apache-2.0
#include "moesaic/formats/image.h"

#include <png.h>
#include <turbojpeg.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <tuple>
#include <utility>

#include "decoders.h"
#include "moesaic/base/error.h"
#include "moesaic/base/text.h"

namespace moesaic {
namespace {

std::unique_ptr<FormatDecoder> open(std::span<const uint8_t> file) {
  if (file.empty()) fail("the file is empty");
  const auto has = [&](std::string_view mark, size_t at = 0) {
    return file.size() >= at + mark.size() &&
           std::memcmp(file.data() + at, mark.data(), mark.size()) == 0;
  };
  using Other = std::tuple<std::string_view, size_t, const char*>;  // A mark, its place, a name.
  constexpr Other kOthers[] = {
      {"GIF8", 0, "a GIF"},
      {"BM", 0, "a BMP"},
      {std::string_view("II*\0", 4), 0, "a TIFF"},
      {std::string_view("MM\0*", 4), 0, "a TIFF"},
      {"ftypavi", 4, "an AVIF"},
      {"ftyphe", 4, "a HEIC"},
      {"ftypmif1", 4, "a HEIC or AVIF"},
      {"ftypmsf1", 4, "a HEIC or AVIF"},
      {"jP  ", 4, "a JPEG 2000"},
      {"version https://git-lfs", 0, "a pointer to a file that 'git lfs pull' fetches"},
      {"<", 0, "a text"},
  };
  for (const auto& [mark, at, name] : kOthers) {
    if (has(mark, at)) fail("{}, only JPEG, PNG and WebP are read", name);
  }
  if (has("\x89PNG")) return open_png(file);
  if (has("\xff\xd8")) return open_jpeg(file);
  if (has("RIFF") && has("WEBP", 8)) return open_webp(file);
  fail("neither a JPEG nor a PNG nor a WebP");
}

/// Returns whether EXIF's orientation swaps height and width.
bool swaps(int orientation) {
  return orientation >= 5;
}

/// Turns `stored` [h, w, 3] as EXIF's orientation says.
std::vector<uint8_t> turned(int orientation, int64_t h, int64_t w,
                            const std::vector<uint8_t>& stored) {
  const auto among = [&](std::initializer_list<int> list) {
    return std::find(list.begin(), list.end(), orientation) != list.end();
  };
  const bool from_bottom = among({3, 4, 6, 7}), from_right = among({2, 3, 7, 8});
  std::vector<uint8_t> out(stored.size());
  uint8_t* next = out.data();
  for (int64_t y = 0; y < (swaps(orientation) ? w : h); ++y) {
    for (int64_t x = 0; x < (swaps(orientation) ? h : w); ++x, next += 3) {
      int64_t row = swaps(orientation) ? x : y, column = swaps(orientation) ? y : x;
      if (from_bottom) row = h - 1 - row;
      if (from_right) column = w - 1 - column;
      std::memcpy(next, stored.data() + (row * w + column) * 3, 3);
    }
  }
  return out;
}

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

}  // namespace

int64_t max_image_pixels() {
  constexpr int64_t kMaxImagePixels = 178'956'970;  // Pillow's.
  const char* const set = std::getenv("MOESAIC_MAX_PIXELS");
  if (set == nullptr) return kMaxImagePixels;
  const auto max = parsed_number<int64_t>(set);
  if (max && *max >= 1) return *max;
  fail_usage("MOESAIC_MAX_PIXELS must be a number of pixels, e.g. {}, found '{}'", kMaxImagePixels,
             set);
}

ImageDecoder::ImageDecoder(std::span<const uint8_t> file, bool applies_exif)
    : decoder_(open(file)) {
  if (applies_exif) orientation_ = exif_orientation(file);
  const int64_t max = max_image_pixels(), h = decoder_->height, w = decoder_->width;
  if (h > max / w) {
    fail(
        "{} x {} pixels are more than the {} that an image may have; set MOESAIC_MAX_PIXELS to {} "
        "to read it",
        h, w, max, h * w);
  }
}

ImageDecoder::~ImageDecoder() = default;

int64_t ImageDecoder::height() const {
  return swaps(orientation_) ? decoder_->width : decoder_->height;
}

int64_t ImageDecoder::width() const {
  return swaps(orientation_) ? decoder_->height : decoder_->width;
}

const std::string& ImageDecoder::warning() const {
  return decoder_->warning;
}

int64_t ImageDecoder::reduction(int64_t max_reduction) const {
  const int64_t h = decoder_->height, w = decoder_->width;
  int64_t d = decoder_->reduces ? 8 : 1;
  // That of a turned image leaves no partial pixels, which would move to its first rows.
  const auto fits = [&] { return orientation_ == 1 || (h % d == 0 && w % d == 0); };
  while (d > 1 && (d > max_reduction || !fits())) d /= 2;
  return d;
}

int64_t ImageDecoder::decode(int64_t max_reduction, std::vector<uint8_t>& rgb) {
  const int64_t h = decoder_->height, w = decoder_->width, d = reduction(max_reduction);
  decoder_->decode(d, rgb);
  if (orientation_ != 1) rgb = turned(orientation_, (h + d - 1) / d, (w + d - 1) / d, rgb);
  return d;
}

Rectangle ImageDecoder::decode_crop(const Rectangle& part, int64_t max_reduction,
                                    std::vector<uint8_t>& rgb, Rectangle& held) {
  const int64_t d = reduction(max_reduction);
  held = {0, 0, (height() + d - 1) / d, (width() + d - 1) / d};
  const auto end = [&](int64_t at, int64_t max) { return std::min((at + d - 1) / d, max); };
  Rectangle inside{part.top / d, part.left / d, 0, 0};
  inside.height = end(part.top + part.height, held.height) - inside.top;
  inside.width = end(part.left + part.width, held.width) - inside.left;
  const bool whole = inside.height == held.height && inside.width == held.width;
  const bool exists = std::min({inside.top, inside.left, inside.height - 1, inside.width - 1}) >= 0;
  Rectangle wider = inside;
  if (whole || !exists || orientation_ != 1 || !decoder_->decode_crop(d, wider, rgb)) {
    decode(d, rgb);
    return inside;
  }
  held = wider;
  return {inside.top - held.top, inside.left - held.left, inside.height, inside.width};
}

std::string encode_jpeg(const PixelView& image, int quality) {
  check_pixels(image);
  const std::unique_ptr<void, int (*)(void*)> handle(tjInitCompress(), &tjDestroy);
  if (handle == nullptr) fail("out of memory");
  const bool grey = image.channels == 1;
  unsigned char* raw = nullptr;
  unsigned long size = 0;
  const int result =
      tjCompress2(handle.get(), image.pixels.data(), static_cast<int>(image.width), 0,
                  static_cast<int>(image.height), grey ? TJPF_GRAY : TJPF_RGB, &raw, &size,
                  grey ? TJSAMP_GRAY : TJSAMP_420, quality, TJFLAG_ACCURATEDCT);
  const std::unique_ptr<unsigned char, void (*)(unsigned char*)> bytes(raw, &tjFree);
  if (result != 0) fail("cannot be encoded: {}", one_line(tjGetErrorStr2(handle.get())));
  return {bytes.get(), bytes.get() + size};
}

std::string encode_png(const PixelView& image) {
  check_pixels(image);
  png_image header = {.version = PNG_IMAGE_VERSION,
                      .width = static_cast<png_uint_32>(image.width),
                      .height = static_cast<png_uint_32>(image.height),
                      .format = image.channels == 1 ? PNG_FORMAT_GRAY : PNG_FORMAT_RGB};
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
