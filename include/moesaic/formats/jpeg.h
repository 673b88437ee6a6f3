// SPDX-License-Identifier: Apache-2.0
// JPEG images as RGB bytes, at full size or at 1/2, 1/4 or 1/8 of it, which skips most of the
// work. Orientation tags (EXIF) are ignored, as the reference's pipelines do.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace moesaic::jpeg {

/// An image that claims more pixels is refused, so that a small file cannot ask for all memory.
inline constexpr int64_t kMaxPixels = int64_t{1} << 26;

/// One image; used by one thread. Errors are Error(failure) and say what is wrong, not where.
class Decoder {
 public:
  /// Reads the header of `bytes`, which must outlive the decoder.
  explicit Decoder(std::span<const uint8_t> bytes);
  ~Decoder();
  Decoder(Decoder&&) noexcept;
  Decoder& operator=(Decoder&&) noexcept;

  int64_t height() const;
  int64_t width() const;

  /// Fills `rgb` [h, w, 3] with h = ceil(height / denominator), w alike; denominator 1, 2, 4 or 8.
  /// Grey images get three equal channels; CMYK and YCCK ones become RGB as ink on white paper
  /// without a colour profile. A file that ends early is an Error.
  void decode(int64_t denominator, std::vector<uint8_t>& rgb);

  /// What the last decode() found odd but could live with; mostly empty.
  const std::string& warning() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace moesaic::jpeg
