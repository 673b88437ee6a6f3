// SPDX-License-Identifier: Apache-2.0
#include "formats/decoders.h"

#include "data/jpeg_bytes.h"
#include "moesaic/base/error.h"
#include "support/matchers.h"

namespace moesaic {
namespace {

using test::jpeg_bytes;
using test::JpegKind;

std::string failure_of_decoding(const Bytes& bytes) {
  return test::failure_of([&] {
    const auto decoder = open_jpeg(bytes);
    std::vector<uint8_t> rgb;
    decoder->decode(1, rgb);
  });
}

void expect_colour(const std::vector<uint8_t>& rgb, int r, int g, int b) {
  ASSERT_FALSE(rgb.empty());
  for (size_t i = 0; i < rgb.size(); i += 3) {
    ASSERT_NEAR(rgb[i], r, 3) << i;
    ASSERT_NEAR(rgb[i + 1], g, 3) << i;
    ASSERT_NEAR(rgb[i + 2], b, 3) << i;
  }
}

TEST(Jpeg, DecodesAtEveryScale) {
  const Bytes bytes = jpeg_bytes(37, 50, JpegKind::rgb, {200, 100, 30});
  for (const int64_t denominator : {1, 2, 4, 8}) {
    const auto decoder = open_jpeg(bytes);
    EXPECT_EQ(decoder->height, 37);
    EXPECT_EQ(decoder->width, 50);
    std::vector<uint8_t> rgb;
    decoder->decode(denominator, rgb);
    const int64_t h = (37 + denominator - 1) / denominator,
                  w = (50 + denominator - 1) / denominator;
    EXPECT_EQ(static_cast<int64_t>(rgb.size()), h * w * 3) << denominator;
    expect_colour(rgb, 200, 100, 30);
    EXPECT_EQ(decoder->warning, "");
  }
}

TEST(Jpeg, ThatIsCutAnywhereIsDamaged) {
  for (const int flags : {0, TJFLAG_PROGRESSIVE}) {
    const Bytes whole = jpeg_bytes(24, 24, JpegKind::noise, {}, flags);
    for (size_t size = 0; size + 2 < whole.size(); ++size) {  // The last two bytes say no more.
      EXPECT_NE(failure_of_decoding(Bytes(whole.begin(), whole.begin() + static_cast<long>(size))),
                "")
          << size;
    }
  }
}

TEST(Jpeg, WithoutItsEndMarkerIsComplete) {
  for (const int flags : {0, TJFLAG_PROGRESSIVE}) {
    Bytes bytes = jpeg_bytes(24, 24, JpegKind::noise, {}, flags);
    std::vector<uint8_t> whole, rgb;
    open_jpeg(bytes)->decode(1, whole);
    for (int lacks = 1; lacks <= 2; ++lacks) {
      bytes.pop_back();
      const auto decoder = open_jpeg(bytes);
      decoder->decode(1, rgb);
      EXPECT_EQ(rgb, whole);
      EXPECT_THAT(decoder->warning, HasSubstr("lacks its end marker"));
    }
  }
}

/// Between two scans the data that are there are whole.
TEST(Jpeg, ThatLacksScansIsDamaged) {
  const Bytes whole = jpeg_bytes(24, 24, JpegKind::noise, {}, TJFLAG_PROGRESSIVE);
  int cuts = 0;
  for (size_t at = 4; at + 1 < whole.size(); ++at) {
    if (whole[at] != 0xff || (whole[at + 1] != 0xc4 && whole[at + 1] != 0xda)) continue;
    EXPECT_THAT(failure_of_decoding(Bytes(whole.begin(), whole.begin() + static_cast<long>(at))),
                HasSubstr("JPEG"));
    ++cuts;
  }
  EXPECT_GT(cuts, 5);
}

TEST(Jpeg, GreyHasThreeEqualChannels) {
  const Bytes bytes = jpeg_bytes(9, 17, JpegKind::grey, {77});
  const auto decoder = open_jpeg(bytes);
  std::vector<uint8_t> rgb;
  decoder->decode(1, rgb);
  EXPECT_EQ(rgb.size(), 9u * 17 * 3);
  expect_colour(rgb, 77, 77, 77);
}

std::vector<uint8_t> decoded(const Bytes& bytes) {
  const auto decoder = open_jpeg(bytes);
  std::vector<uint8_t> rgb;
  decoder->decode(1, rgb);
  return rgb;
}

TEST(Jpeg, InksBecomeColours) {
  // Stored inverted, as Adobe's programs do: what each ink lets through. 200 * 128 / 255 = 100.
  expect_colour(decoded(jpeg_bytes(16, 16, JpegKind::ycck, {200, 100, 255, 128})), 100, 50, 128);
  expect_colour(decoded(test::cmyk_jpeg_bytes(16, 16, 200, 128)), 100, 64, 64);
}

TEST(Jpeg, DamageIsAnError) {
  const Bytes whole = jpeg_bytes(64, 64, JpegKind::noise, {});
  for (const double fraction : {0.3, 0.6, 0.9}) {
    const auto length = static_cast<std::ptrdiff_t>(fraction * static_cast<double>(whole.size()));
    EXPECT_THAT(failure_of_decoding(Bytes(whole.begin(), whole.begin() + length)),
                HasSubstr("Premature end"))
        << fraction;
  }
  EXPECT_THAT(failure_of_decoding({0xff, 0xd8}), HasSubstr("not a JPEG that can be read"));
  EXPECT_THAT(failure_of_decoding(Bytes(500, 'x')), HasSubstr("not a JPEG that can be read"));
}

TEST(Jpeg, AnyFlippedByteIsDecodedOrRefused) {
  const Bytes whole = jpeg_bytes(24, 24, JpegKind::noise, {});
  for (size_t at = 0; at < whole.size(); at += 3) {
    Bytes bytes = whole;
    bytes[at] ^= 0x55;
    try {
      const auto decoder = open_jpeg(bytes);
      if (decoder->height * decoder->width > 1 << 22) continue;
      std::vector<uint8_t> rgb;
      decoder->decode(8, rgb);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::failure);
      EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
    }
  }
}

}  // namespace
}  // namespace moesaic
