// SPDX-License-Identifier: Apache-2.0
#include <csetjmp>
#include <cstdio>
// Needs what is above.
#include <jpeglib.h>
#include <turbojpeg.h>

#include <algorithm>
#include <array>
#include <limits>
#include <map>

#include "decoders.h"
#include "moesaic/base/error.h"

namespace moesaic {
namespace {

constexpr int kDecodeFlags = TJFLAG_LIMITSCANS;

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

/// Columns beside a part: enough to interpolate the colours of its first and last one.
constexpr int64_t kMargin = 8;

/// libjpeg-turbo's own interface reads parts of files; TurboJPEG's has none before its version 3.
struct CropReader {
  CropReader() {
    info.err = jpeg_std_error(&errors);
    info.client_data = this;
    errors.error_exit = refuse;
    errors.emit_message = [](j_common_ptr common, int level) {
      if (level < 0) refuse(common);  // A warning.
    };
  }
  ~CropReader() { jpeg_destroy_decompress(&info); }
  CropReader(const CropReader&) = delete;
  CropReader& operator=(const CropReader&) = delete;

  [[noreturn]] static void refuse(j_common_ptr common) {
    std::longjmp(static_cast<CropReader*>(common->client_data)->refused, 1);
  }

  jpeg_decompress_struct info = {};
  jpeg_error_mgr errors = {};
  std::jmp_buf refused = {};
};

/// FormatDecoder::decode_crop() of a file of a single scan without inks. No object with a
/// destructor may live here, since errors jump to the beginning.
bool read_crop(CropReader& reader, Span file, int64_t denominator, Rectangle& part,
               std::vector<uint8_t>& rgb) {
  if (setjmp(reader.refused) != 0) return false;
  jpeg_decompress_struct& info = reader.info;
  jpeg_create_decompress(&info);
  jpeg_mem_src(&info, file.data(), file.size());
  jpeg_read_header(&info, TRUE);
  if (jpeg_has_multiple_scans(&info) != FALSE) return false;  // All of it is held in memory anyway.
  info.out_color_space = JCS_RGB;
  info.scale_denom = static_cast<unsigned>(denominator);
  jpeg_start_decompress(&info);
  const int64_t begin = std::max<int64_t>(0, part.left - kMargin);
  const int64_t end = std::min<int64_t>(info.output_width, part.left + part.width + kMargin);
  auto left = static_cast<JDIMENSION>(begin), width = static_cast<JDIMENSION>(end - begin);
  jpeg_crop_scanline(&info, &left, &width);
  part.left = left;
  part.width = width;
  const size_t line = size_t{3} * width;
  rgb.resize(line * static_cast<size_t>(part.height));
  if (part.top > 0) jpeg_skip_scanlines(&info, static_cast<JDIMENSION>(part.top));
  for (size_t y = 0; y < static_cast<size_t>(part.height); ++y) {
    JSAMPROW row = rgb.data() + y * line;
    jpeg_read_scanlines(&info, &row, 1);
  }
  // Rows below the part are read too, so that damage is found whatever the part; skipping the last
  // one would skip what follows it in the file.
  const JDIMENSION below = info.output_height - info.output_scanline;
  if (below > 1) jpeg_skip_scanlines(&info, below - 1);
  if (below > 0) {
    JSAMPARRAY unused = info.mem->alloc_sarray(reinterpret_cast<j_common_ptr>(&info), JPOOL_IMAGE,
                                               static_cast<JDIMENSION>(line), 1);
    jpeg_read_scanlines(&info, unused, 1);
  }
  jpeg_finish_decompress(&info);
  return true;
}

class JpegDecoder final : public FormatDecoder {
 public:
  explicit JpegDecoder(std::span<const uint8_t> file)
      : bytes_(file), handle_(tjInitDecompress(), &tjDestroy) {
    reduces = true;
    if (handle_ == nullptr) fail("out of memory");
    read_header();
  }

  void decode(int64_t denominator, std::vector<uint8_t>& rgb) override {
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
    CropReader reader;
    return read_crop(reader, bytes_, denominator, part, rgb);
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

  /// Inks on white paper, inverted as Adobe's programs write them, without a colour profile.
  void cmyk_to_rgb(std::vector<uint8_t>& rgb) const {
    rgb.resize(cmyk_.size() / 4 * 3);
    for (size_t i = 0, o = 0; i < cmyk_.size(); i += 4, o += 3) {
      for (size_t c = 0; c < 3; ++c) {  // The light that paper reflects through both inks.
        rgb[o + c] = static_cast<uint8_t>((unsigned{cmyk_[i + c]} * cmyk_[i + 3] + 127) / 255);
      }
    }
  }

  std::span<const uint8_t> bytes_;
  std::unique_ptr<void, int (*)(void*)> handle_;
  int colours_ = 0;
  std::vector<uint8_t> cmyk_;
};

}  // namespace

std::unique_ptr<FormatDecoder> open_jpeg(std::span<const uint8_t> bytes) {
  return std::make_unique<JpegDecoder>(bytes);
}

}  // namespace moesaic
