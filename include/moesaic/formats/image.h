// SPDX-License-Identifier: Apache-2.0
// Decodes image files, JPEG, PNG and WebP, to the RGB bytes that Pillow's convert("RGB") gives, and
// encodes pixels as JPEG and PNG files.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace moesaic {

/// Returns the max number of pixels of an image, so that a small file cannot exhaust the memory:
/// the number in MOESAIC_MAX_PIXELS, or Pillow's limit. Throws Error (usage) for what is no number.
int64_t max_image_pixels();

struct FormatDecoder;

/// A part of an image, in pixels.
struct Rectangle {
  int64_t top = 0, left = 0, height = 0, width = 0;
};

/// Decoder of one image file, whose format is recognised by its bytes, not by its name; not
/// thread-safe. Throws Error (failure) with the defect, not the place.
class ImageDecoder {
 public:
  /// Reads the header of `file`, which must outlive the decoder. With `applies_exif` the image is
  /// turned as EXIF's orientation says, like by Pillow's ImageOps.exif_transpose. Throws Error
  /// (failure) for an image of more than max_image_pixels(), before memory is taken.
  explicit ImageDecoder(std::span<const uint8_t> file, bool applies_exif = false);
  ~ImageDecoder();

  /// Returns the height in pixels, turned as `applies_exif` says.
  int64_t height() const;
  /// Returns the width in pixels, turned as `applies_exif` says.
  int64_t width() const;

  /// Fills `rgb` [h, w, 3], once, with h = ceil(height / d), w likewise, and returns d: the
  /// greatest of 1, 2, 4 and 8 up to `max_reduction` that the file can be read at, which skips most
  /// of the work for a JPEG; others are read at 1. Greyscale and palettes become colours, alpha is
  /// dropped, CMYK is taken as inverted (Adobe's habit) and without a profile, of 16 bits the upper
  /// 8 count, where Pillow clips 16-bit grey to 255. Throws Error (failure) for a damaged file, but
  /// not for one that lacks nothing but its end marker.
  int64_t decode(int64_t max_reduction, std::vector<uint8_t>& rgb);

  /// Fills `rgb` likewise, or with the surroundings of `part` only, which is a part of the whole
  /// image: of a JPEG of one scan, pixels that are not needed are skipped. Returns where the part
  /// is in `rgb`, every pixel that it touches, and in `held` what `rgb` is of the reduced image.
  Rectangle decode_crop(const Rectangle& part, int64_t max_reduction, std::vector<uint8_t>& rgb,
                        Rectangle& held);

  /// Returns what is odd about a file that decode() can read; usually empty.
  const std::string& warning() const;

 private:
  int64_t reduction(int64_t max_reduction) const;

  std::unique_ptr<FormatDecoder> decoder_;
  int orientation_ = 1;  ///< As EXIF's.
};

/// Pixels [height, width, channels] of bytes; channels is 1 (grey) or 3 (RGB).
struct PixelView {
  std::span<const uint8_t> pixels;
  int64_t height = 0, width = 0, channels = 0;
};

/// Returns a JPEG file; `quality` is 1 to 100, colours are subsampled 4:2:0. Throws Error (failure)
/// for other channels and for sizes that the format does not allow.
std::string encode_jpeg(const PixelView& image, int quality);

/// Returns a PNG file, which decodes to the same bytes. Throws Error (failure) as encode_jpeg().
std::string encode_png(const PixelView& image);

}  // namespace moesaic
