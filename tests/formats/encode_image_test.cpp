// SPDX-License-Identifier: Apache-2.0
#include "moesaic/formats/image.h"

#include <cstdlib>

#include "base/support.h"
#include "support/decoded_image.h"
#include "support/matchers.h"

namespace moesaic {
namespace {

constexpr int64_t kHeight = 6, kWidth = 9;

/// Pixels that change slowly from one to the next.
std::vector<uint8_t> slope(int64_t channels) {
  std::vector<uint8_t> pixels;
  for (int64_t y = 0; y < kHeight; ++y) {
    for (int64_t x = 0; x < kWidth; ++x) {
      for (int64_t c = 0; c < channels; ++c) {
        pixels.push_back(static_cast<uint8_t>(20 * y + 9 * x + 30 * c));
      }
    }
  }
  return pixels;
}

TEST(EncodeImage, PngKeepsEveryByte) {
  for (const int64_t channels : {1, 3}) {
    const std::vector<uint8_t> pixels = slope(channels);
    const test::RgbImage image =
        test::decode_image(encode_png({pixels, kHeight, kWidth, channels}));
    ASSERT_EQ(image.height, kHeight);
    ASSERT_EQ(image.width, kWidth);
    for (size_t i = 0; i < image.pixels.size(); ++i) {
      EXPECT_EQ(image.pixels[i], channels == 3 ? pixels[i] : pixels[i / 3]);
    }
  }
}

TEST(EncodeImage, JpegIsNearAndSmallerOfLessQuality) {
  for (const int64_t channels : {1, 3}) {
    const std::vector<uint8_t> pixels = slope(channels);
    const std::string fine = encode_jpeg({pixels, kHeight, kWidth, channels}, 95);
    EXPECT_LT(encode_jpeg({pixels, kHeight, kWidth, channels}, 10).size(), fine.size());
    const test::RgbImage image = test::decode_image(fine);
    ASSERT_EQ(image.height, kHeight);
    ASSERT_EQ(image.width, kWidth);
    for (size_t i = 0; i < image.pixels.size(); ++i) {
      EXPECT_NEAR(image.pixels[i], channels == 3 ? pixels[i] : pixels[i / 3], 12);
    }
  }
}

TEST(EncodeImage, WhatIsNoImageIsRefused) {
  const std::vector<uint8_t> pixels(24);
  EXPECT_THAT(test::failure_of([&] { encode_png({pixels, 3, 4, 2}); }), HasSubstr("channels"));
  EXPECT_THAT(test::failure_of([&] { encode_png({pixels, 3, 4, 1}); }), HasSubstr("24 bytes"));
  EXPECT_THAT(test::failure_of([&] { encode_jpeg({pixels, 0, 4, 3}, 95); }), HasSubstr("0 x 4"));
}

}  // namespace
}  // namespace moesaic
