// SPDX-License-Identifier: Apache-2.0
#include <turbojpeg.h>

#include <algorithm>
#include <array>
#include <limits>
#include <map>

#include "decoders.h"
#include "moesaic/base/error.h"

namespace moesaic::jpeg {
namespace {

constexpr int kDecodeFlags = TJFLAG_LIMITSCANS;

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

using Span = std::span<const uint8_t>;

constexpr uint64_t kAll = ~uint64_t{0};

/// The coefficients, one a bit, whose last bit a scan has brought, by component.
using Complete = std::map<uint8_t, uint64_t>;

/// Takes a frame's components: behind precision, height and width, three bytes each.
void take_frame(Span segment, Complete& complete) {
  for (size_t i = 0; segment.size() > 5 && i < segment[5] && 6 + 3 * i < segment.size(); ++i) {
    complete.emplace(segment[6 + 3 * i], 0);
  }
}

/// Takes a scan's header: its components, two bytes each, the first and the last coefficient, and
/// how many of their bits are still to come.
void take_scan(Span segment, Complete& complete) {
  if (segment.empty()) return;
  const size_t count = segment[0], behind = 1 + 2 * count;
  if (segment.size() < behind + 3 || (segment[behind + 2] & 15) != 0) return;
  const unsigned first = segment[behind], last = std::min<unsigned>(63, segment[behind + 1]);
  uint64_t brought = 0;
  for (unsigned k = first; k <= last; ++k) brought |= uint64_t{1} << k;
  for (size_t i = 0; i < count; ++i) {
    const auto found = complete.find(segment[1 + 2 * i]);
    if (found != complete.end()) found->second |= brought;
  }
}

/// Returns whether the headers of the scans of a JPEG file announce every bit of every coefficient,
/// so that none is missing where it ends; not whether the data of the last scan are whole.
bool has_all_scans(Span file) {
  constexpr uint8_t kFrame = 0xc0, kLastFrame = 0xcf, kScan = 0xda;
  Complete complete;
  for (size_t at = 2; at + 4 <= file.size();) {
    const uint8_t marker = file[at + 1];
    // Data of a scan hold 0xff before 0 and before restart markers only.
    if (file[at] != 0xff || marker == 0 || marker == 0xff || (marker >= 0xd0 && marker <= 0xd7)) {
      ++at;
      continue;
    }
    const size_t length = size_t{file[at + 2]} << 8 | file[at + 3];
    const Span rest = file.subspan(at + 4);
    const Span segment = rest.first(std::min(rest.size(), length < 2 ? 0 : length - 2));
    // Of the same kind as frames are Huffman tables, a reserved one, and arithmetic conditioning.
    const bool frame = marker >= kFrame && marker <= kLastFrame && marker != 0xc4 &&
                       marker != 0xc8 && marker != 0xcc;
    if (frame) take_frame(segment, complete);
    if (marker == kScan) take_scan(segment, complete);
    at += 2 + std::max<size_t>(length, 2);
  }
  return !complete.empty() && std::all_of(complete.begin(), complete.end(),
                                          [](const auto& one) { return one.second == kAll; });
}

class Decoder final : public FormatDecoder {
 public:
  explicit Decoder(std::span<const uint8_t> file)
      : bytes_(file), handle_(tjInitDecompress(), &tjDestroy) {
    reduces = true;
    if (handle_ == nullptr) fail("out of memory");
    read_header();
  }

  void decode(int64_t denominator, std::vector<uint8_t>& rgb) override {
    if (denominator != 1 && denominator != 2 && denominator != 4 && denominator != 8) {
      fail_usage("a JPEG is decoded at 1, 1/2, 1/4 or 1/8, not 1/{}", denominator);
    }
    const tjscalingfactor scale = {1, static_cast<int>(denominator)};
    const int w = TJSCALED(static_cast<int>(width), scale),
              h = TJSCALED(static_cast<int>(height), scale);
    if (colours_ == TJCS_CMYK || colours_ == TJCS_YCCK) {
      decompress(w, h, TJPF_CMYK, cmyk_);
      cmyk_to_rgb(rgb);
    } else {
      decompress(w, h, TJPF_RGB, rgb);
    }
  }

  bool decode_crop(int64_t denominator, Rectangle& part, std::vector<uint8_t>& rgb) override {
    warning.clear();
    return jpeg::decode_crop(bytes_, denominator, part, rgb);
  }

 private:
  std::string reason() const {
    std::string text = tjGetErrorStr2(handle_.get());
    std::replace(text.begin(), text.end(), '\n', ' ');
    return text;
  }

  void read_header() {
    if (bytes_.size() > std::numeric_limits<uint32_t>::max()) fail("too long for a JPEG");
    int w = 0, h = 0, subsampling = 0;
    if (tjDecompressHeader3(handle_.get(), bytes_.data(), bytes_.size(), &w, &h, &subsampling,
                            &colours_) != 0) {
      fail("not a JPEG that can be read: {}", reason());
    }
    if (h < 1 || w < 1) fail("not a JPEG that can be read: no image in it");
    height = h;
    width = w;
  }

  bool decoded(std::span<const uint8_t> file, int w, int h, int format, int flags,
               std::vector<uint8_t>& out) {
    return tjDecompress2(handle_.get(), file.data(), file.size(), out.data(), w, 0, h, format,
                         kDecodeFlags | flags) == 0;
  }

  /// The library tells of the last thing alone, and not whether it is the end of a decoding that
  /// had begun with a warning. Hence the first warning by a decoding that ends there.
  void decompress(int w, int h, int format, std::vector<uint8_t>& out) {
    out.resize(static_cast<size_t>(w) * static_cast<size_t>(h) *
               static_cast<size_t>(tjPixelSize[format]));
    warning.clear();
    if (decoded(bytes_, w, h, format, TJFLAG_STOPONWARNING, out)) return;
    std::string defect = reason();
    if (is_warning(defect)) {
      if (decoded(bytes_, w, h, format, 0, out)) return;
      warning = defect = reason();
    }
    if (is_warning(defect)) return;
    if (!decoded_with_end(w, h, format, out)) fail("corrupt JPEG: {}", defect);
    warning = "the image is complete, but the file lacks its end marker";
  }

  /// Decodes a file that lacks its end marker and nothing else: with the marker, the library would
  /// warn if data lacked a bit. What is filled up with zeros stays an error, since they hide that.
  bool decoded_with_end(int w, int h, int format, std::vector<uint8_t>& out) {
    if (!reason().starts_with("Premature end of JPEG file") || !has_all_scans(bytes_)) return false;
    std::vector<uint8_t> ended(bytes_.begin(), bytes_.end());
    ended.insert(ended.end(), {0xff, 0xd9});
    return decoded(ended, w, h, format, TJFLAG_STOPONWARNING, out);
  }

  void cmyk_to_rgb(std::vector<uint8_t>& rgb) const {
    rgb.resize(cmyk_.size() / 4 * 3);
    for (size_t i = 0, o = 0; i < cmyk_.size(); i += 4, o += 3) {
      for (size_t c = 0; c < 3; ++c) rgb[o + c] = through(cmyk_[i + c], cmyk_[i + 3]);
    }
  }

  std::span<const uint8_t> bytes_;
  std::unique_ptr<void, int (*)(void*)> handle_;
  int colours_ = 0;
  std::vector<uint8_t> cmyk_;
};

}  // namespace

std::unique_ptr<FormatDecoder> open(std::span<const uint8_t> bytes) {
  return std::make_unique<Decoder>(bytes);
}

}  // namespace moesaic::jpeg
