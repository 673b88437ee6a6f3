// SPDX-License-Identifier: Apache-2.0
// Decodes WebP images to RGB bytes.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace moesaic::webp {

/// Decoder of one image; not thread-safe. Throws Error (failure) with the defect, not the place.
class Decoder {
 public:
  /// Reads the header of `bytes`, which must outlive the decoder. Throws for an animation.
  explicit Decoder(std::span<const uint8_t> bytes);

  int64_t height() const { return height_; }
  int64_t width() const { return width_; }

  /// Fills `rgb` [height, width, 3]; alpha is dropped. Throws Error (failure) if the file is
  /// damaged or truncated.
  void decode(std::vector<uint8_t>& rgb);

  /// Returns "": libwebp knows no warnings.
  const std::string& warning() const { return warning_; }

 private:
  std::span<const uint8_t> bytes_;
  int height_ = 0, width_ = 0;
  std::string warning_;
};

}  // namespace moesaic::webp
