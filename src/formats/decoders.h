// SPDX-License-Identifier: Apache-2.0
// What ImageDecoder stands on: a decoder for each format, and the orientation that a file names.
#pragma once

#include "moesaic/formats/image.h"

namespace moesaic {

/// Decodes one image to RGB bytes; not thread-safe. Throws Error (failure) with the defect, not the
/// place.
struct FormatDecoder {
  int64_t height = 0, width = 0;
  bool reduces = false;  ///< Whether it also reads at 1/2, 1/4 and 1/8, at much less work.
  std::string warning;   ///< Non-fatal warning of the last decode(); usually empty.

  virtual ~FormatDecoder() = default;
  /// Fills `rgb` [h, w, 3], once, with h = ceil(height / denominator), w likewise; denominator 1,
  /// or one of 2, 4 and 8 where the decoder `reduces`.
  virtual void decode(int64_t denominator, std::vector<uint8_t>& rgb) = 0;
  /// Fills `rgb` with what decode() gives within `part`, which becomes the part that `rgb` holds:
  /// as high, and as wide or wider. Returns false where only decode() can read the file, e.g. one
  /// that is damaged anywhere.
  virtual bool decode_crop(int64_t, Rectangle&, std::vector<uint8_t>&) { return false; }
};

/// Each reads the header of `bytes`, which must outlive the decoder, and makes colours as
/// ImageDecoder::decode() says. A file that is corrupt or truncated is an Error (failure), as is an
/// animated WebP; one that is whole but for its end, behind the last pixel, is read with a warning,
/// of which libwebp knows none.
std::unique_ptr<FormatDecoder> open_jpeg(std::span<const uint8_t> bytes);
std::unique_ptr<FormatDecoder> open_png(std::span<const uint8_t> bytes);
std::unique_ptr<FormatDecoder> open_webp(std::span<const uint8_t> bytes);

/// Returns the orientation of a JPEG, PNG or WebP file, 1 to 8, as Pillow's ImageOps.exif_transpose
/// reads it: EXIF's, of either byte order and any integer type, or else XMP's; in a PNG also out of
/// ImageMagick's raw profiles. 1, as stored, where there is none or it is corrupt.
int exif_orientation(std::span<const uint8_t> file);

}  // namespace moesaic
