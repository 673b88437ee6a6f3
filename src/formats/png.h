// SPDX-License-Identifier: Apache-2.0
// Decodes PNG images to RGB bytes.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace moesaic::png {

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

  /// Fills `rgb` [height, width, 3], once. Palettes and grey become colours and alpha is dropped as
  /// by Pillow's convert("RGB"); of 16 bits the upper 8 count, of grey too. Throws Error (failure)
  /// if the file is damaged; what is wrong behind the last pixel is a warning.
  void decode(std::vector<uint8_t>& rgb);

  /// Returns the non-fatal warning of reading; usually empty.
  const std::string& warning() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace moesaic::png
