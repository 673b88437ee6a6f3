// SPDX-License-Identifier: Apache-2.0
// What ImageDecoder stands on: a decoder for each format, and the orientation that a file names.
#pragma once

#include "moesaic/formats/image.h"

namespace moesaic {

/// Decodes one image to RGB bytes; not thread-safe. Throws Error (failure) with the defect, not the
/// place.
struct FormatDecoder {
  int64_t height = 0, width = 0;
  bool reduces =
      false;  ///< Whether it also reads at 1/2, 1/4 and 1/8, which skips most of the work.
  std::string warning;  ///< Non-fatal warning of the last decode(); usually empty.

  virtual ~FormatDecoder() = default;
  /// Fills `rgb` [h, w, 3], once, with h = ceil(height / denominator), w likewise; denominator 1
  /// unless the decoder `reduces`.
  virtual void decode(int64_t denominator, std::vector<uint8_t>& rgb) = 0;
  /// Fills `rgb` with what decode() gives within `part`, which becomes the part that `rgb` holds:
  /// as high, and as wide or wider. Returns false where only decode() can read the file, e.g. one
  /// that is damaged anywhere.
  virtual bool decode_crop(int64_t, Rectangle&, std::vector<uint8_t>&) { return false; }
};

// Each reads the header of `bytes`, which must outlive the decoder.
namespace jpeg {
/// Greyscale is expanded to three equal channels; CMYK and YCCK are taken as inverted, as Adobe's
/// programs write them, and converted to RGB as ink on white paper, without a colour profile. A
/// file that is truncated is an Error (failure); one that lacks nothing but its end marker is read
/// with a warning.
std::unique_ptr<FormatDecoder> open(std::span<const uint8_t> bytes);
/// FormatDecoder::decode_crop() of a file of a single scan without inks.
bool decode_crop(std::span<const uint8_t> bytes, int64_t denominator, Rectangle& part,
                 std::vector<uint8_t>& rgb);
}  // namespace jpeg
namespace png {
/// Palettes and grey become colours and alpha is dropped as by Pillow's convert("RGB"); of 16 bits
/// the upper 8 count, of grey too. A corrupt file is an Error (failure); what is wrong behind the
/// last pixel is a warning.
std::unique_ptr<FormatDecoder> open(std::span<const uint8_t> bytes);
}  // namespace png
namespace webp {
/// Alpha is dropped. An animation and a file that is corrupt or truncated are Errors (failure);
/// libwebp knows no warnings.
std::unique_ptr<FormatDecoder> open(std::span<const uint8_t> bytes);
}  // namespace webp

/// Returns the orientation of a JPEG, PNG or WebP file, 1 to 8, as Pillow's ImageOps.exif_transpose
/// reads it: EXIF's, of either byte order and any integer type, or else XMP's; in a PNG also out of
/// ImageMagick's raw profiles. 1, as stored, where there is none or it is corrupt.
int exif_orientation(std::span<const uint8_t> file);

}  // namespace moesaic
