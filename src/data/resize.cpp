// SPDX-License-Identifier: Apache-2.0
#include "moesaic/data/resize.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/_upsample_bicubic2d_aa.h>
#include <ATen/ops/_upsample_bilinear2d_aa.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/upsample_bicubic2d.h>
#include <ATen/ops/upsample_bilinear2d.h>

#include <algorithm>
#include <cmath>
#include <utility>

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

/// Where an output lies between two inputs along one side.
struct Between {
  int64_t low, high;
  float weight;  ///< Of the higher one.
};

/// Returns the inputs for each output, in TensorFlow's types and order of operations.
std::vector<Between> inputs_between(int64_t in_size, int64_t out_size) {
  const float scale = static_cast<float>(in_size) / static_cast<float>(out_size);
  std::vector<Between> inputs;
  for (int64_t i = 0; i < out_size; ++i) {
    const float at = (static_cast<float>(i) + 0.5f) * scale - 0.5f, below = std::floor(at);
    const auto low = static_cast<int64_t>(below);
    inputs.push_back({std::max<int64_t>(low, 0), std::min(low + 1, in_size - 1), at - below});
  }
  return inputs;
}

/// Writes bytes [H, W, C] whose rows are `row_stride` apart, resized by bilinear interpolation in
/// float32 and without their fractions, to [C, height, width].
void resize_truncated(const uint8_t* in, int64_t row_stride, int64_t channels,
                      const Rectangle& part, int64_t height, int64_t width, uint8_t* out) {
  const std::vector<Between> columns = inputs_between(part.width, width);
  const std::vector<Between> rows = inputs_between(part.height, height);
  for (int64_t c = 0; c < channels; ++c) {
    for (const Between& row : rows) {
      const uint8_t *upper = in + row.low * row_stride + c, *lower = in + row.high * row_stride + c;
      for (const Between& column : columns) {
        const auto along = [&](const uint8_t* line) {
          const float left = line[column.low * channels], right = line[column.high * channels];
          return left + (right - left) * column.weight;
        };
        const float top = along(upper), bottom = along(lower);
        *out++ = static_cast<uint8_t>(top + (bottom - top) * row.weight);
      }
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
  if (options.truncate) {
    return resize_truncated(first, row_stride, channels, part, height, width, out);
  }
  const at::Tensor part_1CHW =
      at::from_blob(const_cast<uint8_t*>(first), {1, channels, part.height, part.width},
                    {bitmap.height * row_stride, 1, row_stride, channels}, at::kByte);
  const at::Tensor resized_HWC =
      interpolate(part_1CHW, options, height, width)[0].permute({1, 2, 0}).contiguous();
  channels_first(resized_HWC.const_data_ptr<uint8_t>(), width * channels, channels, height, width,
                 out);
}

bool can_convert_channels(int64_t from, int64_t to) {
  const auto known = [](int64_t channels) { return channels == 1 || channels == 3; };
  return known(from) && known(to);
}

void convert_channels(Bitmap& bitmap, int64_t channels) {
  if (bitmap.channels == channels) return;
  const std::vector<uint8_t> pixels = std::exchange(bitmap.pixels, {});
  bitmap.channels = channels;
  if (channels == 3) {
    bitmap.pixels.resize(3 * pixels.size());
    for (size_t i = 0; i < pixels.size(); ++i) std::fill_n(&bitmap.pixels[3 * i], 3, pixels[i]);
    return;
  }
  bitmap.pixels.resize(pixels.size() / 3);
  for (size_t i = 0; i < bitmap.pixels.size(); ++i) {
    const uint32_t sum =
        19595u * pixels[3 * i] + 38470u * pixels[3 * i + 1] + 7471u * pixels[3 * i + 2];
    bitmap.pixels[i] = static_cast<uint8_t>((sum + 0x8000u) >> 16);
  }
}

std::vector<double> converted_values(const std::vector<double>& values, int64_t channels) {
  if (channels == 3 && values.size() == 1) return {values[0], values[0], values[0]};
  if (channels != 1 || values.size() != 3) return values;
  return {0.299 * values[0] + 0.587 * values[1] + 0.114 * values[2]};
}

}  // namespace moesaic
