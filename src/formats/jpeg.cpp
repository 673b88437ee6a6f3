// SPDX-License-Identifier: Apache-2.0
#include "moesaic/formats/jpeg.h"

#include <turbojpeg.h>

#include <algorithm>
#include <array>
#include <limits>

#include "moesaic/base/error.h"

namespace moesaic::jpeg {
namespace {

constexpr int kDecodeFlags = TJFLAG_LIMITSCANS;

struct DestroyDecompressor {
  void operator()(void* handle) const { tjDestroy(handle); }
};

bool starts_with(std::span<const uint8_t> bytes, std::span<const uint8_t> head) {
  return bytes.size() >= head.size() && std::equal(head.begin(), head.end(), bytes.begin());
}

/// Returns the name of a format that is often misnamed as JPEG, or "".
std::string other_format(std::span<const uint8_t> bytes) {
  constexpr std::array<uint8_t, 4> kPng = {0x89, 'P', 'N', 'G'};
  constexpr std::array<uint8_t, 3> kGif = {'G', 'I', 'F'};
  constexpr std::array<uint8_t, 2> kBmp = {'B', 'M'};
  constexpr std::array<uint8_t, 4> kRiff = {'R', 'I', 'F', 'F'};
  if (starts_with(bytes, kPng)) return "a PNG";
  if (starts_with(bytes, kGif)) return "a GIF";
  if (starts_with(bytes, kBmp)) return "a BMP";
  if (starts_with(bytes, kRiff)) return "a WebP";
  return "";
}

/// Returns whether the file has the Adobe segment, which means that CMYK values are inverted.
bool has_adobe_segment(std::span<const uint8_t> bytes) {
  constexpr std::array<uint8_t, 5> kAdobe = {'A', 'd', 'o', 'b', 'e'};
  constexpr uint8_t kApp14 = 0xee, kStartOfScan = 0xda;
  size_t at = 2;
  while (at + 4 <= bytes.size() && bytes[at] == 0xff) {
    const uint8_t marker = bytes[at + 1];
    if (marker == kStartOfScan) return false;
    if (marker == 0xff) {  // Fill bytes precede a marker.
      ++at;
      continue;
    }
    if (marker == kApp14 && starts_with(bytes.subspan(at + 4), kAdobe)) return true;
    at += 2 + (size_t{bytes[at + 2]} << 8 | bytes[at + 3]);
  }
  return false;
}

/// Returns the light that white paper reflects through two inks of transmittances `c` and `k`.
uint8_t through(uint8_t c, uint8_t k) {
  return static_cast<uint8_t>((static_cast<unsigned>(c) * k + 127) / 255);
}

}  // namespace

struct Decoder::State {
  std::span<const uint8_t> bytes;
  std::unique_ptr<void, DestroyDecompressor> handle;
  int height = 0, width = 0, subsampling = 0, colours = 0;
  std::string warning;
  std::vector<uint8_t> cmyk;

  std::string reason() const {
    std::string text = tjGetErrorStr2(handle.get());
    std::replace(text.begin(), text.end(), '\n', ' ');
    return text;
  }

  void read_header() {
    if (bytes.empty()) fail("the file is empty");
    if (const std::string other = other_format(bytes); !other.empty()) {
      fail("{}, only JPEG is read", other);
    }
    if (bytes.size() > std::numeric_limits<uint32_t>::max()) fail("too long for a JPEG");
    if (tjDecompressHeader3(handle.get(), bytes.data(), bytes.size(), &width, &height, &subsampling,
                            &colours) != 0) {
      fail("not a JPEG that can be read: {}", reason());
    }
    if (height < 1 || width < 1) fail("not a JPEG that can be read: no image in it");
    if (int64_t{height} * width > kMaxPixels) {
      fail("{} x {} pixels are more than the {} that an image may have", height, width, kMaxPixels);
    }
  }

  void decompress(int w, int h, int format, std::vector<uint8_t>& out) {
    out.resize(static_cast<size_t>(w) * static_cast<size_t>(h) *
               static_cast<size_t>(tjPixelSize[format]));
    warning.clear();
    if (tjDecompress2(handle.get(), bytes.data(), bytes.size(), out.data(), w, 0, h, format,
                      kDecodeFlags) == 0) {
      return;
    }
    const std::string text = reason();
    const bool cut = text.find("Premature end") != std::string::npos;
    if (cut || tjGetErrorCode(handle.get()) == TJERR_FATAL) fail("damaged JPEG: {}", text);
    warning = text;
  }

  void cmyk_to_rgb(std::vector<uint8_t>& rgb) const {
    const uint8_t flip = has_adobe_segment(bytes) ? 0 : 255;
    rgb.resize(cmyk.size() / 4 * 3);
    for (size_t i = 0, o = 0; i < cmyk.size(); i += 4, o += 3) {
      const auto k = static_cast<uint8_t>(cmyk[i + 3] ^ flip);
      for (size_t c = 0; c < 3; ++c) {
        rgb[o + c] = through(static_cast<uint8_t>(cmyk[i + c] ^ flip), k);
      }
    }
  }
};

Decoder::Decoder(std::span<const uint8_t> bytes) : state_(std::make_unique<State>()) {
  state_->bytes = bytes;
  state_->handle.reset(tjInitDecompress());
  if (state_->handle == nullptr) fail("out of memory");
  state_->read_header();
}

Decoder::~Decoder() = default;
Decoder::Decoder(Decoder&&) noexcept = default;
Decoder& Decoder::operator=(Decoder&&) noexcept = default;

int64_t Decoder::height() const {
  return state_->height;
}
int64_t Decoder::width() const {
  return state_->width;
}
const std::string& Decoder::warning() const {
  return state_->warning;
}

void Decoder::decode(int64_t denominator, std::vector<uint8_t>& rgb) {
  if (denominator != 1 && denominator != 2 && denominator != 4 && denominator != 8) {
    fail_usage("a JPEG is decoded at 1, 1/2, 1/4 or 1/8, not 1/{}", denominator);
  }
  const tjscalingfactor scale = {1, static_cast<int>(denominator)};
  const int w = TJSCALED(state_->width, scale), h = TJSCALED(state_->height, scale);
  if (state_->colours == TJCS_CMYK || state_->colours == TJCS_YCCK) {
    state_->decompress(w, h, TJPF_CMYK, state_->cmyk);
    state_->cmyk_to_rgb(rgb);
  } else {
    state_->decompress(w, h, TJPF_RGB, rgb);
  }
}

}  // namespace moesaic::jpeg
