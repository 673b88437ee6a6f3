// SPDX-License-Identifier: Apache-2.0
#include "jpeg.h"

#include <turbojpeg.h>

#include <algorithm>
#include <array>
#include <limits>

#include "jpeg_scans.h"
#include "moesaic/base/error.h"

namespace moesaic::jpeg {
namespace {

constexpr int kDecodeFlags = TJFLAG_LIMITSCANS;

struct DestroyDecompressor {
  void operator()(void* handle) const { tjDestroy(handle); }
};

/// Returns the light that white paper reflects through two inks of transmittances `c` and `k`.
uint8_t through(uint8_t c, uint8_t k) {
  return static_cast<uint8_t>((static_cast<unsigned>(c) * k + 127) / 255);
}

/// Returns whether the library goes on after it, and the pixels are worth something: not where the
/// file ends too early.
bool is_warning(const std::string& text) {
  constexpr std::array kBeginnings = {"Corrupt JPEG data",      "Warning: unknown JFIF",
                                      "Unknown Adobe color",    "Inconsistent progression",
                                      "Invalid SOS parameters", "Application transferred"};
  return std::any_of(kBeginnings.begin(), kBeginnings.end(),
                     [&](const char* beginning) { return text.starts_with(beginning); });
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
    if (bytes.size() > std::numeric_limits<uint32_t>::max()) fail("too long for a JPEG");
    if (tjDecompressHeader3(handle.get(), bytes.data(), bytes.size(), &width, &height, &subsampling,
                            &colours) != 0) {
      fail("not a JPEG that can be read: {}", reason());
    }
    if (height < 1 || width < 1) fail("not a JPEG that can be read: no image in it");
  }

  bool decoded(std::span<const uint8_t> file, int w, int h, int format, int flags,
               std::vector<uint8_t>& out) {
    return tjDecompress2(handle.get(), file.data(), file.size(), out.data(), w, 0, h, format,
                         kDecodeFlags | flags) == 0;
  }

  /// The library tells of the last thing alone, and not whether it is the end of a decoding that
  /// had begun with a warning. Hence the first warning by a decoding that ends there.
  void decompress(int w, int h, int format, std::vector<uint8_t>& out) {
    out.resize(static_cast<size_t>(w) * static_cast<size_t>(h) *
               static_cast<size_t>(tjPixelSize[format]));
    warning.clear();
    if (decoded(bytes, w, h, format, TJFLAG_STOPONWARNING, out)) return;
    std::string defect = reason();
    if (is_warning(defect)) {
      if (decoded(bytes, w, h, format, 0, out)) return;
      warning = defect = reason();
    }
    if (is_warning(defect)) return;
    if (!decoded_with_end(w, h, format, out)) fail("damaged JPEG: {}", defect);
    warning = "the image is complete, but not the file: its end marker is missing";
  }

  /// Decodes a file that lacks its end marker and nothing else: with the marker, the library would
  /// warn if data lacked a bit. What is filled up with zeros stays an error, since they hide that.
  bool decoded_with_end(int w, int h, int format, std::vector<uint8_t>& out) {
    if (!reason().starts_with("Premature end of JPEG file") || !has_all_scans(bytes)) return false;
    std::vector<uint8_t> ended(bytes.begin(), bytes.end());
    ended.insert(ended.end(), {0xff, 0xd9});
    return decoded(ended, w, h, format, TJFLAG_STOPONWARNING, out);
  }

  void cmyk_to_rgb(std::vector<uint8_t>& rgb) const {
    rgb.resize(cmyk.size() / 4 * 3);
    for (size_t i = 0, o = 0; i < cmyk.size(); i += 4, o += 3) {
      for (size_t c = 0; c < 3; ++c) rgb[o + c] = through(cmyk[i + c], cmyk[i + 3]);
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
