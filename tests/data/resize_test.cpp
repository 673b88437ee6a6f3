// SPDX-License-Identifier: Apache-2.0
#include "moesaic/data/resize.h"

#include <algorithm>
#include <cmath>

#include "data/data_fixture.h"
#include "moesaic/formats/safetensors.h"
#include "support/matchers.h"

namespace moesaic {
namespace {

Bitmap noise(int64_t height, int64_t width, int64_t channels) {
  Bitmap bitmap{height, width, channels, {}};
  uint32_t state = 5;
  for (int64_t i = 0; i < height * width * channels; ++i) {
    state = state * 1664525 + 1013904223;
    // Cubic weights reach beyond what they weigh: no sum may leave the bytes on the way.
    bitmap.pixels.push_back(static_cast<uint8_t>(64 + (state >> 25)));
  }
  return bitmap;
}

/// The filter at a distance from its middle: a triangle, or Keys' cubic with a = -0.5 or -0.75.
double filter_at(double x, bool cubic, double a) {
  x = std::abs(x);
  if (!cubic) return std::max(0.0, 1.0 - x);
  if (x < 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
  return x < 2 ? (((x - 5) * x + 8) * x - 4) * a : 0.0;
}

/// Weights of the inputs for one output along one side. With antialias the filter is as wide as an
/// output pixel and only inputs within the part count; without, beyond the edge is the edge.
std::vector<double> weights(int64_t out, int64_t in_size, int64_t out_size, bool cubic,
                            bool antialias) {
  const double scale = static_cast<double>(in_size) / static_cast<double>(out_size);
  const double middle = scale * (static_cast<double>(out) + 0.5);
  const double wide = antialias ? std::max(1.0, scale) : 1.0;
  const double a = antialias ? -0.5 : -0.75;
  std::vector<double> result(static_cast<size_t>(in_size));
  double sum = 0;
  for (int64_t i = -3; i < in_size + 3; ++i) {
    const bool inside = i >= 0 && i < in_size;
    if (antialias && !inside) continue;
    double from = middle;
    if (!antialias && !cubic) from = std::max(from, 0.5);
    const double weight = filter_at((static_cast<double>(i) + 0.5 - from) / wide, cubic, a);
    result[static_cast<size_t>(std::clamp<int64_t>(i, 0, in_size - 1))] += weight;
    sum += weight;
  }
  for (double& weight : result) weight /= sum;
  return result;
}

double expected(const Bitmap& bitmap, const Rectangle& part, const ResizeOptions& options,
                int64_t height, int64_t width, int64_t c, int64_t y, int64_t x) {
  const bool cubic = options.interpolation == Interpolation::bicubic;
  const auto rows = weights(y, part.height, height, cubic, options.antialias);
  const auto columns = weights(x, part.width, width, cubic, options.antialias);
  double sum = 0;
  for (int64_t i = 0; i < part.height; ++i) {
    for (int64_t j = 0; j < part.width; ++j) {
      const int64_t at = ((part.top + i) * bitmap.width + part.left + j) * bitmap.channels + c;
      sum += rows[static_cast<size_t>(i)] * columns[static_cast<size_t>(j)] *
             bitmap.pixels[static_cast<size_t>(at)];
    }
  }
  return std::clamp(sum, 0.0, 255.0);
}

struct ResizeCase {
  Rectangle part;
  int64_t height, width;
};

TEST(Resize, EqualsTheSumOverTheFilter) {
  const std::vector<ResizeCase> cases = {{{3, 5, 20, 26}, 7, 9},
                                         {{0, 0, 31, 41}, 8, 8},
                                         {{2, 1, 6, 5}, 13, 11},
                                         {{30, 40, 1, 1}, 4, 4},
                                         {{0, 7, 31, 3}, 16, 16}};
  for (const int64_t channels : {1, 3}) {
    const Bitmap bitmap = noise(31, 41, channels);
    for (const auto interpolation : {Interpolation::bilinear, Interpolation::bicubic}) {
      for (const bool antialias : {true, false}) {
        for (const ResizeCase& c : cases) {
          const ResizeOptions options{interpolation, antialias};
          std::vector<uint8_t> out(static_cast<size_t>(channels * c.height * c.width));
          resize(bitmap, c.part, options, c.height, c.width, out.data());
          size_t at = 0;
          for (int64_t k = 0; k < channels; ++k) {
            for (int64_t y = 0; y < c.height; ++y) {
              for (int64_t x = 0; x < c.width; ++x) {
                // Bytes are rounded after each of the two passes.
                ASSERT_NEAR(out[at++],
                            expected(bitmap, c.part, options, c.height, c.width, k, y, x), 1.6)
                    << channels << " channels, bicubic "
                    << (interpolation == Interpolation::bicubic) << ", antialias " << antialias
                    << ", " << c.part.height << "x" << c.part.width << " to " << c.height << "x"
                    << c.width << " at " << k << ", " << y << ", " << x;
              }
            }
          }
        }
      }
    }
  }
}

TEST(Resize, TruncatedBytesAreTensorFlows) {
  const safetensors::File file(MOESAIC_TEST_SOURCE_DIR "/tests/golden/resize.safetensors");
  const auto bytes_of = [&](const safetensors::Entry& entry) {
    const auto bytes = file.bytes(entry);
    const auto* first = reinterpret_cast<const uint8_t*>(bytes.data());
    return std::vector<uint8_t>(first, first + bytes.size());
  };
  // The image lies within a larger one, of which nothing may show.
  Bitmap bitmap{27, 36, 3, std::vector<uint8_t>(27 * 36 * 3, 77)};
  const std::vector<uint8_t> image = bytes_of(*file.find("image"));
  for (size_t y = 0; y < 23; ++y) {
    std::copy_n(image.begin() + static_cast<int64_t>(y * 31 * 3), 31 * 3,
                bitmap.pixels.begin() + static_cast<int64_t>(((y + 2) * 36 + 3) * 3));
  }
  const ResizeOptions options{.antialias = false, .truncate = true};
  for (const safetensors::Entry& entry : file.entries()) {
    if (entry.name == "image") continue;
    const int64_t height = entry.shape[0], width = entry.shape[1], plane = height * width;
    const std::vector<uint8_t> expected_HWC = bytes_of(entry);
    std::vector<uint8_t> out_CHW(expected_HWC.size()), out_HWC(expected_HWC.size());
    resize(bitmap, {2, 3, 23, 31}, options, height, width, out_CHW.data());
    for (int64_t i = 0; i < 3 * plane; ++i) {
      out_HWC[static_cast<size_t>(i % plane * 3 + i / plane)] = out_CHW[static_cast<size_t>(i)];
    }
    EXPECT_EQ(out_HWC, expected_HWC) << entry.name;
  }
}

TEST(Resize, APartOfTheRightSizeIsCopied) {
  const Bitmap bitmap = noise(9, 8, 3);
  std::vector<uint8_t> out(3 * 4 * 5);
  resize(bitmap, {2, 1, 4, 5}, {}, 4, 5, out.data());
  for (size_t c = 0; c < 3; ++c) {
    for (size_t y = 0; y < 4; ++y) {
      for (size_t x = 0; x < 5; ++x) {
        EXPECT_EQ(out[(c * 4 + y) * 5 + x], bitmap.pixels[((y + 2) * 8 + x + 1) * 3 + c]);
      }
    }
  }
}

TEST(Resize, APartOutsideIsRefused) {
  const Bitmap bitmap = noise(9, 8, 3);
  std::vector<uint8_t> out(3);
  for (const Rectangle& part :
       {Rectangle{0, 0, 10, 1}, {0, 0, 1, 9}, {-1, 0, 2, 2}, {0, 7, 1, 2}, {0, 0, 0, 3}}) {
    EXPECT_THAT(test::failure_of([&] { resize(bitmap, part, {}, 1, 1, out.data()); }),
                HasSubstr("not within an image of 9 x 8"));
  }
}

}  // namespace
}  // namespace moesaic
