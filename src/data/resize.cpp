// SPDX-License-Identifier: Apache-2.0
#include "moesaic/data/resize.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/_upsample_bicubic2d_aa.h>
#include <ATen/ops/_upsample_bilinear2d_aa.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/upsample_bicubic2d.h>
#include <ATen/ops/upsample_bilinear2d.h>

#include <cstring>

#include "moesaic/base/error.h"

namespace moesaic {
namespace {

at::Tensor interpolate(const at::Tensor& part_1CHW, const ResizeOptions& options, int64_t height,
                       int64_t width) {
  const std::array<int64_t, 2> size = {height, width};
  if (options.interpolation == Interpolation::bicubic) {
    return options.antialias ? at::_upsample_bicubic2d_aa(part_1CHW, size, false)
                             : at::upsample_bicubic2d(part_1CHW, size, false);
  }
  return options.antialias ? at::_upsample_bilinear2d_aa(part_1CHW, size, false)
                           : at::upsample_bilinear2d(part_1CHW, size, false);
}

/// Copies bytes [H, W, C] with any strides of H and W to [C, H, W].
void channels_first(const uint8_t* in, int64_t row_stride, int64_t channels, int64_t height,
                    int64_t width, uint8_t* out) {
  const int64_t plane = height * width;
  if (channels == 3) {  // The most frequent case.
    uint8_t *red = out, *green = out + plane, *blue = out + 2 * plane;
    for (int64_t y = 0; y < height; ++y, in += row_stride) {
      for (int64_t x = 0; x < width; ++x) {
        *red++ = in[3 * x];
        *green++ = in[3 * x + 1];
        *blue++ = in[3 * x + 2];
      }
    }
    return;
  }
  for (int64_t y = 0; y < height; ++y, in += row_stride) {
    for (int64_t x = 0; x < width; ++x) {
      for (int64_t c = 0; c < channels; ++c) out[c * plane + y * width + x] = in[x * channels + c];
    }
  }
}

}  // namespace

void resize(const Bitmap& bitmap, const Rectangle& part, const ResizeOptions& options,
            int64_t height, int64_t width, uint8_t* out) {
  const bool inside = part.top >= 0 && part.left >= 0 && part.height >= 1 && part.width >= 1 &&
                      part.height <= bitmap.height - part.top &&
                      part.width <= bitmap.width - part.left;
  if (!inside) {
    fail("a part of {} x {} pixels at {}, {} is not within an image of {} x {}", part.height,
         part.width, part.top, part.left, bitmap.height, bitmap.width);
  }
  const int64_t channels = bitmap.channels, row_stride = bitmap.width * channels;
  const uint8_t* first = bitmap.pixels.data() + part.top * row_stride + part.left * channels;
  if (part.height == height && part.width == width) {
    return channels_first(first, row_stride, channels, height, width, out);
  }
  const at::Tensor part_1CHW =
      at::from_blob(const_cast<uint8_t*>(first), {1, channels, part.height, part.width},
                    {bitmap.height * row_stride, 1, row_stride, channels}, at::kByte);
  const at::Tensor resized_HWC =
      interpolate(part_1CHW, options, height, width)[0].permute({1, 2, 0}).contiguous();
  channels_first(resized_HWC.const_data_ptr<uint8_t>(), width * channels, channels, height, width,
                 out);
}

}  // namespace moesaic
