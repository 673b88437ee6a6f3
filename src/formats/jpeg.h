// SPDX-License-Identifier: Apache-2.0
// Decodes JPEG images to RGB bytes, at full size or at 1/2, 1/4 or 1/8 of it, which skips most of
// the work.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace moesaic::jpeg {

/// Decoder of one image; not thread-safe. Throws Error (failure) with the defect, not the place.
class Decoder {
 public:
  /// Reads the header of `bytes`, which must outlive the decoder.
  explicit Decoder(std::span<const uint8_t> bytes);
  ~Decoder();
  Decoder(Decoder&&) noexcept;
  Decoder& operator=(Decoder&&) noexcept;

  int64_t height() const;
  int64_t width() const;

  /// Fills `rgb` [h, w, 3] with h = ceil(height / denominator), w likewise; denominator 1, 2, 4 or
  /// 8. Greyscale is expanded to three equal channels; CMYK and YCCK are taken as inverted, as
  /// Adobe's programs write them, and converted to RGB as ink on white paper, without a colour
  /// profile. Throws Error (failure) if the file is truncated; one that lacks nothing but its end
  /// marker is read with a warning.
  void decode(int64_t denominator, std::vector<uint8_t>& rgb);

  /// Returns the non-fatal warning of the last decode(); usually empty.
  const std::string& warning() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace moesaic::jpeg
