// SPDX-License-Identifier: Apache-2.0
#include "moesaic/formats/image.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zlib.h>

#include <algorithm>

#include "data/jpeg_bytes.h"
#include "data/png_bytes.h"
#include "moesaic/base/error.h"
#include "moesaic/formats/safetensors.h"

namespace moesaic {
namespace {

using test::Bytes;
using test::jpeg_bytes;
using test::JpegKind;
using test::plain_png_bytes;
using ::testing::AllOf;
using ::testing::HasSubstr;

std::string failure_of_image(const Bytes& bytes) {
  return test::error_of(ErrorKind::failure, [&] { decode_image(bytes); });
}

std::span<const uint8_t> decode_golden(const safetensors::File& file, const std::string& name) {
  const auto bytes = file.bytes(*file.find(name));
  return {reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()};
}

void expect_pillows(const safetensors::File& file, const std::string& name,
                    const std::string& pixels) {
  const bool upright = pixels == "/upright";
  const RgbImage image = decode_image(decode_golden(file, name + "/file"), upright);
  const safetensors::Entry& entry = *file.find(name + pixels);
  EXPECT_EQ(image.height, entry.shape[0]) << name << pixels;
  EXPECT_EQ(image.width, entry.shape[1]) << name << pixels;
  const auto expected = decode_golden(file, name + pixels);
  EXPECT_TRUE(
      std::equal(expected.begin(), expected.end(), image.pixels.begin(), image.pixels.end()))
      << name << pixels;
}

TEST(Image, EveryKindOfFileIsDecodedAsByPillow) {
  const safetensors::File file(MOESAIC_TEST_SOURCE_DIR "/tests/golden/decode.safetensors");
  int files = 0, turned = 0;
  for (const safetensors::Entry& entry : file.entries()) {
    if (!entry.name.ends_with("/file")) continue;
    const std::string name = entry.name.substr(0, entry.name.size() - 5);
    expect_pillows(file, name, "/rgb");
    ++files;
    if (file.find(name + "/upright") == nullptr) continue;
    expect_pillows(file, name, "/upright");
    ++turned;
  }
  EXPECT_EQ(files, 59);
  EXPECT_EQ(turned, 17);
}

TEST(Image, ATurnedJpegIsReducedByWhatDividesIt) {
  const safetensors::File file(MOESAIC_TEST_SOURCE_DIR "/tests/golden/decode.safetensors");
  ImageDecoder stored(decode_golden(file, "jpeg_turned_6/file")),
      upright(decode_golden(file, "jpeg_turned_6/file"), true);
  std::vector<uint8_t> rgb;
  EXPECT_EQ(stored.decode(8, rgb), 8);
  EXPECT_EQ(upright.height(), stored.width());
  EXPECT_EQ(upright.decode(8, rgb), 1);
  EXPECT_EQ(rgb.size(), static_cast<size_t>(3 * upright.height() * upright.width()));
}

TEST(Image, SixteenBitGreyIsWarnedOf) {
  const safetensors::File file(MOESAIC_TEST_SOURCE_DIR "/tests/golden/decode.safetensors");
  ImageDecoder deep(decode_golden(file, "png_0_16/file")),
      small(decode_golden(file, "png_grey_16_small/file"));
  std::vector<uint8_t> rgb;
  deep.decode(1, rgb);
  small.decode(1, rgb);
  EXPECT_THAT(deep.warning(), HasSubstr("clipped to 255"));
  EXPECT_EQ(small.warning(), "");
}

TEST(Image, OtherFilesAreNamed) {
  EXPECT_THAT(failure_of_image({}), HasSubstr("empty"));
  EXPECT_THAT(failure_of_image(Bytes(500, 'x')), HasSubstr("neither a JPEG nor a PNG"));
  EXPECT_THAT(failure_of_image({'G', 'I', 'F', '8', '9', 'a'}),
              HasSubstr("a GIF, only JPEG and PNG"));
  EXPECT_THAT(failure_of_image({0x89, 'P', 'N', 'G', 13, 10, 26, 10}),
              HasSubstr("not a PNG that can be read: the file ends too early"));
}

/// Writes `value` over 4 bytes of a PNG's header and mends its checksum.
Bytes with_header(Bytes bytes, size_t at, uint32_t value) {
  constexpr size_t kKind = 12, kChecksum = 29;
  const auto put = [&](size_t place, uint64_t number) {
    for (size_t i = 0; i < 4; ++i) bytes[place + i] = static_cast<uint8_t>(number >> (24 - 8 * i));
  };
  put(at, value);
  put(kChecksum, crc32(0, bytes.data() + kKind, kChecksum - kKind));
  return bytes;
}

constexpr size_t kPngWidth = 16, kPngHeight = 20;

TEST(Image, GiantClaimsAreRefusedBeforeMemoryIsTaken) {
  Bytes bytes = jpeg_bytes(16, 16, JpegKind::rgb, {1, 2, 3});
  for (size_t i = 0; i + 8 < bytes.size(); ++i) {
    if (bytes[i] == 0xff && bytes[i + 1] == 0xc0) {  // the frame: height and width behind 5 bytes
      bytes[i + 5] = bytes[i + 7] = 0xff;
      break;
    }
  }
  EXPECT_THAT(failure_of_image(bytes), HasSubstr("65296 x 65296 pixels are more than"));
  const Bytes png = plain_png_bytes(16, 16, {1, 2, 3});
  EXPECT_THAT(failure_of_image(with_header(png, kPngWidth, 0x7fffffff)),
              HasSubstr("16 x 2147483647 pixels are more than"));
  EXPECT_THAT(failure_of_image(with_header(png, kPngHeight, 1 << 22)),
              HasSubstr("damaged PNG: the file ends too early"));
  EXPECT_THAT(failure_of_image(with_header(png, kPngHeight, 0x80000000)),
              HasSubstr("not a PNG that can be read"));
}

/// A PNG whose text chunk unpacks to 256 MB.
TEST(Image, ChunksThatAreBombsAreSkipped) {
  Bytes bytes = plain_png_bytes(4, 4, {1, 2, 3});
  Bytes packed(600'000), raw(256'000'000, 0);
  uLongf size = packed.size();
  ASSERT_EQ(compress2(packed.data(), &size, raw.data(), raw.size(), 9), Z_OK);
  for (const std::string kind : {"zTXt", "iCCP"}) {
    std::string data = kind + std::string("name\0\0", 6);
    data.append(reinterpret_cast<const char*>(packed.data()), size);
    const uint64_t length = data.size() - 4;
    const uint64_t sum =
        crc32(0, reinterpret_cast<const Bytef*>(data.data()), static_cast<uInt>(data.size()));
    for (int shift = 24; shift >= 0; shift -= 8) data += static_cast<char>(sum >> shift);
    std::string head;
    for (int shift = 24; shift >= 0; shift -= 8) head += static_cast<char>(length >> shift);
    data.insert(0, head);
    bytes.insert(bytes.begin() + 33, data.begin(), data.end());
  }
  EXPECT_EQ(decode_image(bytes).pixels, decode_image(plain_png_bytes(4, 4, {1, 2, 3})).pixels);
}

TEST(Image, APngCutAnywhereIsAnError) {
  const Bytes whole = plain_png_bytes(24, 24, {9, 99, 199});
  for (size_t length = 8; length < whole.size(); ++length) {
    EXPECT_THAT(failure_of_image(Bytes(whole.begin(), whole.begin() + static_cast<long>(length))),
                AllOf(HasSubstr("PNG"), HasSubstr("the file ends too early")))
        << length;
  }
}

TEST(Image, AnyFlippedByteOfAFileIsDecodedOrRefused) {
  const safetensors::File file(MOESAIC_TEST_SOURCE_DIR "/tests/golden/decode.safetensors");
  for (const char* name : {"png_3_4_interlaced", "png_4_16", "png_turned_6", "jpeg_turned_8"}) {
    const auto whole = decode_golden(file, std::string(name) + "/file");
    for (size_t at = 0; at < whole.size(); ++at) {
      Bytes bytes(whole.begin(), whole.end());
      bytes[at] ^= 0x55;
      try {
        ImageDecoder decoder(bytes, true);
        if (decoder.height() * decoder.width() > 1 << 22) continue;
        std::vector<uint8_t> rgb;
        decoder.decode(8, rgb);
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::failure);
        EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
      }
    }
  }
}

}  // namespace
}  // namespace moesaic
