// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "moesaic/formats/image.h"

namespace moesaic {

/// An image with channels last: bytes [height, width, channels].
struct Bitmap {
  int64_t height = 0, width = 0, channels = 0;
  std::vector<uint8_t> pixels;
};

enum class Interpolation { bilinear, bicubic };

/// How images are resized.
struct ResizeOptions {
  Interpolation interpolation = Interpolation::bilinear;
  /// Whether the filter widens with the scale when downsizing, so that every pixel contributes.
  bool antialias = true;
  /// Whether bytes lose their fractions instead of being rounded, as by TensorFlow's image.resize
  /// and cast; for bilinear without antialias only.
  bool truncate = false;
};

/// Writes `part` of `bitmap`, resized to height x width, to `out` [channels, height, width]. Pixels
/// outside the part have no influence: the result is that of PyTorch's
/// interpolate(part, size, mode, align_corners=False, antialias) of bytes, or with `truncate` that
/// of tf.cast(tf.image.resize(part, size), tf.uint8). Throws Error (failure) for a part that is
/// empty or not within the image.
void resize(const Bitmap& bitmap, const Rectangle& part, const ResizeOptions& options,
            int64_t height, int64_t width, uint8_t* out);

/// Returns whether images of so many channels become those of another number: 1 and 3 do.
bool can_convert_channels(int64_t from, int64_t to);

/// Makes a colour image grey, L = 0.299 R + 0.587 G + 0.114 B in fixed point as Pillow rounds it,
/// or a grey one three equal channels; leaves an image that has `channels` alone.
void convert_channels(Bitmap& bitmap, int64_t channels);

/// Returns mean or std of each of `channels`, of which `values` has 1 or 3: in place of three the
/// same weighted sum, in place of one three times the same.
std::vector<double> converted_values(const std::vector<double>& values, int64_t channels);

}  // namespace moesaic
