// SPDX-License-Identifier: Apache-2.0
#include "moesaic/formats/image.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <utility>
#include <variant>

#include "exif.h"
#include "jpeg.h"
#include "moesaic/base/error.h"
#include "png.h"
#include "webp.h"

namespace moesaic {
namespace {

using AnyDecoder = std::variant<jpeg::Decoder, png::Decoder, webp::Decoder>;

AnyDecoder open(std::span<const uint8_t> file) {
  if (file.empty()) fail("the file is empty");
  const auto begins = [&](std::string_view head) {
    return file.size() >= head.size() && std::memcmp(file.data(), head.data(), head.size()) == 0;
  };
  constexpr std::array<std::pair<std::string_view, const char*>, 5> kOthers = {{
      {"GIF8", "a GIF"},
      {"BM", "a BMP"},
      {std::string_view("II*\0", 4), "a TIFF"},
      {std::string_view("MM\0*", 4), "a TIFF"},
      {"<", "a text"},
  }};
  for (const auto& [head, name] : kOthers) {
    if (begins(head)) fail("{}, only JPEG, PNG and WebP are read", name);
  }
  if (begins("\x89PNG")) return png::Decoder(file);
  if (begins("\xff\xd8")) return jpeg::Decoder(file);
  if (begins("RIFF") && file.size() >= 12 && std::memcmp(file.data() + 8, "WEBP", 4) == 0) {
    return webp::Decoder(file);
  }
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

}  // namespace

struct ImageDecoder::State {
  AnyDecoder decoder;
  int orientation = 1;
  int64_t height = 0, width = 0;  ///< As stored.

  bool divides(int64_t d) const { return height % d == 0 && width % d == 0; }

  /// Returns the greatest reduction up to `max`; that of a turned image leaves no partial pixels,
  /// which would move to its first rows.
  int64_t reduction(int64_t max) const {
    if (!std::holds_alternative<jpeg::Decoder>(decoder)) return 1;
    for (const int64_t d : {8, 4, 2}) {
      if (d <= max && (orientation == 1 || divides(d))) return d;
    }
    return 1;
  }
};

int64_t max_image_pixels() {
  const char* const set = std::getenv("MOESAIC_MAX_PIXELS");
  if (set == nullptr) return kMaxImagePixels;
  const std::string_view text(set);
  int64_t max = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), max);
  if (error == std::errc() && end == text.data() + text.size() && max >= 1) return max;
  fail_usage("MOESAIC_MAX_PIXELS must be a number of pixels, e.g. {}, found '{}'", kMaxImagePixels,
             text);
}

ImageDecoder::ImageDecoder(std::span<const uint8_t> file, bool upright)
    : state_(new State{.decoder = open(file)}) {
  if (upright) state_->orientation = exif_orientation(file);
  std::visit(
      [this](const auto& decoder) {
        state_->height = decoder.height();
        state_->width = decoder.width();
      },
      state_->decoder);
  const int64_t max = max_image_pixels();
  if (state_->height > max / state_->width) {
    fail(
        "{} x {} pixels are more than the {} that an image may have; set MOESAIC_MAX_PIXELS to {} "
        "to read it",
        state_->height, state_->width, max, state_->height * state_->width);
  }
}

ImageDecoder::~ImageDecoder() = default;
ImageDecoder::ImageDecoder(ImageDecoder&&) noexcept = default;
ImageDecoder& ImageDecoder::operator=(ImageDecoder&&) noexcept = default;

int64_t ImageDecoder::height() const {
  return swaps(state_->orientation) ? state_->width : state_->height;
}
int64_t ImageDecoder::width() const {
  return swaps(state_->orientation) ? state_->height : state_->width;
}
const std::string& ImageDecoder::warning() const {
  return std::visit([](const auto& decoder) -> const std::string& { return decoder.warning(); },
                    state_->decoder);
}

int64_t ImageDecoder::decode(int64_t max_reduction, std::vector<uint8_t>& rgb) {
  const int64_t d = state_->reduction(max_reduction);
  std::visit(
      [&](auto& decoder) {
        if constexpr (std::is_same_v<std::decay_t<decltype(decoder)>, jpeg::Decoder>) {
          decoder.decode(d, rgb);
        } else {
          decoder.decode(rgb);
        }
      },
      state_->decoder);
  if (state_->orientation != 1) {
    rgb =
        turned(state_->orientation, (state_->height + d - 1) / d, (state_->width + d - 1) / d, rgb);
  }
  return d;
}

RgbImage decode_image(std::span<const uint8_t> file, bool upright) {
  ImageDecoder decoder(file, upright);
  RgbImage image{decoder.height(), decoder.width(), {}};
  decoder.decode(1, image.pixels);
  return image;
}

}  // namespace moesaic
