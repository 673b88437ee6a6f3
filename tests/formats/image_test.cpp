// SPDX-License-Identifier: Apache-2.0
#include "moesaic/formats/image.h"

#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <set>

#include "data/jpeg_bytes.h"
#include "data/png_bytes.h"
#include "moesaic/base/error.h"
#include "moesaic/formats/safetensors.h"
#include "support/decoded_image.h"
#include "support/matchers.h"

namespace moesaic {
namespace {

using test::jpeg_bytes;
using test::JpegKind;
using test::plain_png_bytes;

std::string failure_of_image(const Bytes& bytes) {
  return test::failure_of([&] { test::decode_image(bytes); });
}

std::span<const uint8_t> decode_golden(const safetensors::File& file, const std::string& name) {
  const auto bytes = file.bytes(*file.find(name));
  return {reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()};
}

void expect_pillows(const safetensors::File& file, const std::string& name,
                    const std::string& pixels) {
  const bool upright = pixels == "/upright";
  const test::RgbImage image = test::decode_image(decode_golden(file, name + "/file"), upright);
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
  EXPECT_EQ(files, 79);
  EXPECT_EQ(turned, 33);
}

TEST(Image, ARotatedJpegIsReducedByADivisorOfItsSides) {
  const safetensors::File file(MOESAIC_TEST_SOURCE_DIR "/tests/golden/decode.safetensors");
  ImageDecoder stored(decode_golden(file, "jpeg_turned_6/file")),
      upright(decode_golden(file, "jpeg_turned_6/file"), true);
  std::vector<uint8_t> rgb;
  EXPECT_EQ(stored.decode(8, rgb), 8);
  EXPECT_EQ(upright.height(), stored.width());
  EXPECT_EQ(upright.decode(8, rgb), 1);
  EXPECT_EQ(rgb.size(), static_cast<size_t>(3 * upright.height() * upright.width()));
}

/// Returns noise whose colours are subsampled both ways.
Bytes subsampled_jpeg_bytes(int64_t height, int64_t width) {
  Bytes pixels(static_cast<size_t>(3 * height * width));
  for (size_t i = 0; i < pixels.size(); ++i) {
    pixels[i] = static_cast<uint8_t>((i * 2654435761u) >> 24);
  }
  const std::string file = encode_jpeg({pixels, height, width, 3}, 90);
  return {file.begin(), file.end()};
}

/// Expects that `part` has the pixels of the image read as a whole. Returns the pixels in memory.
int64_t expect_pixels_of_whole(const Bytes& file, const Rectangle& part, int64_t reduction) {
  ImageDecoder all(file), some(file);
  std::vector<uint8_t> whole, rgb;
  EXPECT_EQ(all.decode(reduction, whole), reduction);
  const int64_t width = (all.width() + reduction - 1) / reduction;
  Rectangle held;
  const Rectangle found = some.decode_crop(part, reduction, rgb, held);
  EXPECT_EQ(held.top + found.top, part.top / reduction);
  EXPECT_EQ(held.left + found.left, part.left / reduction);
  EXPECT_GE((held.top + found.top + found.height) * reduction, part.top + part.height);
  EXPECT_GE((held.left + found.left + found.width) * reduction, part.left + part.width);
  for (int64_t y = 0; y < found.height; ++y) {
    const auto own = rgb.begin() + 3 * ((found.top + y) * held.width + found.left);
    const auto row =
        whole.begin() + 3 * ((held.top + found.top + y) * width + held.left + found.left);
    EXPECT_TRUE(std::equal(own, own + 3 * found.width, row)) << "row " << y;
  }
  EXPECT_EQ(std::ssize(rgb), 3 * held.height * held.width);
  return held.height * held.width;
}

TEST(Image, ACropOfAJpegHasThePixelsOfTheFullImage) {
  const std::vector<Bytes> files = {subsampled_jpeg_bytes(101, 149),
                                    jpeg_bytes(101, 149, JpegKind::noise, {}),
                                    jpeg_bytes(101, 149, JpegKind::grey, {77})};
  for (const Rectangle& part : std::vector<Rectangle>{{0, 0, 1, 1},
                                                      {37, 50, 1, 1},
                                                      {16, 32, 32, 48},
                                                      {33, 63, 40, 51},
                                                      {0, 100, 101, 49},
                                                      {60, 0, 41, 149}}) {
    for (const int64_t reduction : {1, 2, 4, 8}) {
      for (const Bytes& file : files) {
        const int64_t pixels = expect_pixels_of_whole(file, part, reduction);
        EXPECT_LT(pixels * reduction * reduction, 101 * 149) << part.top << ' ' << reduction;
      }
      // What has several scans, or inks, is read whole.
      for (const Bytes& file : {jpeg_bytes(101, 149, JpegKind::noise, {}, TJFLAG_PROGRESSIVE),
                                jpeg_bytes(101, 149, JpegKind::ycck, {200, 100, 255, 128})}) {
        EXPECT_GE(expect_pixels_of_whole(file, part, reduction) * reduction * reduction, 101 * 149);
      }
    }
  }
}

/// Else a damaged file would be replaced in some epochs and not in others.
TEST(Image, DamageOutsideThePartOfAJpegIsFound) {
  const Bytes whole = subsampled_jpeg_bytes(101, 149);
  std::vector<uint8_t> rgb;
  Rectangle held;
  const auto read_top = [&](const Bytes& file) {
    ImageDecoder decoder(file);
    decoder.decode_crop({0, 0, 8, 8}, 1, rgb, held);
    return decoder.warning();
  };
  for (const size_t lacks : {3u, 40u, 400u}) {
    const Bytes cut(whole.begin(), whole.end() - static_cast<long>(lacks));
    EXPECT_THAT(test::failure_of([&] { read_top(cut); }), HasSubstr("Premature end")) << lacks;
  }
  EXPECT_THAT(read_top(Bytes(whole.begin(), whole.end() - 2)), HasSubstr("its end marker"));
  EXPECT_EQ(read_top(whole), "");
  EXPECT_LT(held.height, 101);
}

TEST(Image, SixteenBitGreyKeepsItsShades) {
  const safetensors::File file(MOESAIC_TEST_SOURCE_DIR "/tests/golden/decode.safetensors");
  const test::RgbImage deep = test::decode_image(decode_golden(file, "png_0_16/file"));
  const std::set<uint8_t> shades(deep.pixels.begin(), deep.pixels.end());
  EXPECT_GT(shades.size(), 50u) << "not white";
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

TEST(Image, OtherFilesAreNamed) {
  EXPECT_THAT(failure_of_image({}), HasSubstr("empty"));
  EXPECT_THAT(failure_of_image(Bytes(500, 'x')), HasSubstr("neither a JPEG nor a PNG"));
  EXPECT_THAT(failure_of_image({'G', 'I', 'F', '8', '9', 'a'}),
              HasSubstr("a GIF, only JPEG, PNG and WebP"));
  const std::vector<std::pair<std::string, std::string>> others = {{"ftypheic", "a HEIC,"},
                                                                   {"ftypavif", "an AVIF,"},
                                                                   {"ftypmif1", "a HEIC or AVIF,"},
                                                                   {"jP  \r\n", "a JPEG 2000,"}};
  for (const auto& [mark, name] : others) {
    const std::string file = std::string("\0\0\0\x18", 4) + mark;
    EXPECT_THAT(failure_of_image(Bytes(file.begin(), file.end())), HasSubstr(name)) << mark;
  }
  const std::string pointer = "version https://git-lfs.github.com/spec/v1\n";
  EXPECT_THAT(failure_of_image(Bytes(pointer.begin(), pointer.end())), HasSubstr("git lfs pull"));
  EXPECT_THAT(failure_of_image({0x89, 'P', 'N', 'G', 13, 10, 26, 10}),
              HasSubstr("not a PNG that can be read: the file ends too early"));
  const std::string moving("RIFF\x16\0\0\0WEBPVP8X\x0a\0\0\0\x02\0\0\0\x0f\0\0\x0f\0\0", 30);
  EXPECT_THAT(failure_of_image(Bytes(moving.begin(), moving.end())),
              HasSubstr("an animated WebP, only still images"));
}

TEST(Image, AWebpCutAnywhereIsAnError) {
  const safetensors::File file(MOESAIC_TEST_SOURCE_DIR "/tests/golden/decode.safetensors");
  for (const char* name : {"webp_lossy_rgba/file", "webp_lossless_rgb/file"}) {
    const auto whole = decode_golden(file, name);
    for (size_t length = 0; length < whole.size(); ++length) {
      EXPECT_NE(failure_of_image(Bytes(whole.begin(), whole.begin() + static_cast<long>(length))),
                "")
          << name << length;
    }
  }
}

TEST(Image, TheLimitOnPixelsIsPillowsOrASetting) {
  const Bytes png = plain_png_bytes(16, 16, {1, 2, 3});
  const Bytes photo = with_header(with_header(png, kPngWidth, 12000), kPngHeight, 9000);
  EXPECT_THAT(failure_of_image(photo), HasSubstr("corrupt PNG: the file ends too early"));
  EXPECT_THAT(failure_of_image(with_header(photo, kPngWidth, 20000)),
              AllOf(HasSubstr("9000 x 20000 pixels are more than the 178956970 that an image may "
                              "have; set MOESAIC_MAX_PIXELS to 180000000"),
                    Not(HasSubstr("corrupt"))));
  const test::ScopedEnv less("MOESAIC_MAX_PIXELS", "255");
  EXPECT_THAT(failure_of_image(png), HasSubstr("16 x 16 pixels are more than the 255 that"));
  const test::ScopedEnv none("MOESAIC_MAX_PIXELS", "1e9");
  EXPECT_THAT(test::usage_of([&] { test::decode_image(png); }),
              HasSubstr("must be a number of pixels, e.g. 178956970, found '1e9'"));
}

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
              HasSubstr("corrupt PNG: the file ends too early"));
  EXPECT_THAT(failure_of_image(with_header(png, kPngHeight, 0x80000000)),
              HasSubstr("not a PNG that can be read"));
}

/// Puts a chunk behind a PNG's header.
Bytes with_chunk(Bytes bytes, const std::string& kind, const std::string& data) {
  const auto number = [](uint64_t value) {
    std::string text;
    for (int shift = 24; shift >= 0; shift -= 8) text += static_cast<char>(value >> shift);
    return text;
  };
  const std::string body = kind + data;
  const uint64_t sum =
      crc32(0, reinterpret_cast<const Bytef*>(body.data()), static_cast<uInt>(body.size()));
  const std::string chunk = number(data.size()) + body + number(sum);
  bytes.insert(bytes.begin() + 33, chunk.begin(), chunk.end());
  return bytes;
}

/// A PNG whose text chunks unpack to 256 MB.
TEST(Image, ChunksThatAreBombsAreSkipped) {
  Bytes bytes = plain_png_bytes(4, 4, {1, 2, 3});
  Bytes packed(600'000), raw(256'000'000, 0);
  uLongf size = packed.size();
  ASSERT_EQ(compress2(packed.data(), &size, raw.data(), raw.size(), 9), Z_OK);
  const std::string bomb(reinterpret_cast<const char*>(packed.data()), size);
  for (const char* name : {"name", "Raw profile type exif"}) {
    for (const char* kind : {"zTXt", "iCCP"}) {
      bytes = with_chunk(bytes, kind, name + std::string(2, '\0') + bomb);
    }
  }
  EXPECT_EQ(test::decode_image(bytes, true).pixels,
            test::decode_image(plain_png_bytes(4, 4, {1, 2, 3})).pixels);
}

TEST(Image, OnlyTheProfileExifOfAPngTurnsIt) {
  const std::string segment =
      "457869660000"
      "49492a0008000000"
      "0100"
      "12010300010000000600"
      "0000"
      "00000000";
  for (const auto& [type, height] : {std::pair("exif", 6), {"APP1", 4}}) {  // As in Pillow.
    const std::string text = fmt::format("Raw profile type {0}{1}\n{0}\n 32\n", type, '\0');
    const Bytes bytes = with_chunk(plain_png_bytes(4, 6, {1, 2, 3}), "tEXt", text + segment);
    EXPECT_EQ(test::decode_image(bytes, true).height, height) << type;
    EXPECT_EQ(test::decode_image(bytes).height, 4);
  }
}

/// EXIF of a PNG that begins with `magic` and says to turn the image by this orientation.
std::string turning_tiff(const std::string& magic, char orientation) {
  if (magic[0] == 'M') {
    return magic + std::string("\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0", 15) + orientation +
           std::string(6, '\0');
  }
  return magic + std::string("\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0", 14) + orientation +
         std::string(7, '\0');
}

/// As Pillow 13 reads them.
TEST(Image, OfSeveralTextsOfAPngTheLastOneTurnsIt) {
  const auto profile = [](char orientation) {
    std::string digits;
    for (const char c :
         "Exif" + std::string(2, '\0') + turning_tiff(std::string("II*\0", 4), orientation)) {
      digits += fmt::format("{:02x}", static_cast<unsigned char>(c));
    }
    return "Raw profile type exif" + std::string(1, '\0') + "\nexif\n 32\n" + digits;
  };
  const auto xmp = [](char orientation) {
    return "XML:com.adobe.xmp" + std::string(5, '\0') + "<r tiff:Orientation=\"" + orientation +
           "\"/>";
  };
  const Bytes plain = plain_png_bytes(4, 6, {1, 2, 3});
  const auto height_of = [&](const char* kind, const std::string& first, const std::string& last) {
    return test::decode_image(with_chunk(with_chunk(plain, kind, last), kind, first), true).height;
  };
  EXPECT_EQ(height_of("tEXt", profile(6), profile(1)), 4);
  EXPECT_EQ(height_of("tEXt", profile(1), profile(6)), 6);
  EXPECT_EQ(height_of("iTXt", xmp('6'), xmp('1')), 4);
  EXPECT_EQ(height_of("iTXt", xmp('1'), xmp('6')), 6);
}

TEST(Image, ExifWithoutTheNumberOfATiffTurnsNothing) {
  const auto height_of = [](const std::string& magic) {
    const Bytes plain = plain_png_bytes(4, 6, {1, 2, 3});
    return test::decode_image(with_chunk(plain, "eXIf", turning_tiff(magic, 6)), true).height;
  };
  for (const char* magic : {"II*\0", "MM\0*", "II\0*", "MM*\0"}) {
    EXPECT_EQ(height_of(std::string(magic, 4)), 6) << magic;
  }
  for (const char* magic : {"II\0\0", "MM\0\0", "II+\0", "MM**", "IIxy"}) {
    EXPECT_EQ(height_of(std::string(magic, 4)), 4) << magic;
  }
}

/// As Pillow 13 reads them.
TEST(Image, OfSeveralOrientationsTheFirstOfAKnownTypeTurnsIt) {
  const auto height_of = [](const std::string& entries) {
    const std::string tiff =
        std::string("II*\0\x08\0\0\0\x02\0", 10) + entries + std::string(4, '\0');
    return test::decode_image(with_chunk(plain_png_bytes(4, 6, {1, 2, 3}), "eXIf", tiff), true)
        .height;
  };
  const auto entry = [](char type, char orientation) {
    return std::string("\x12\x01", 2) + type + std::string("\0\x01\0\0\0", 5) + orientation +
           std::string(3, '\0');
  };
  constexpr char kShort = 3, kUnknown = 14;
  EXPECT_EQ(height_of(entry(kShort, 6) + entry(kShort, 1)), 6);
  EXPECT_EQ(height_of(entry(kShort, 1) + entry(kShort, 6)), 4);
  EXPECT_EQ(height_of(entry(kUnknown, 1) + entry(kShort, 6)), 6);
}

TEST(Image, WithoutItsEndMarkerAPngIsComplete) {
  constexpr size_t kEndChunk = 12;
  Bytes bytes = plain_png_bytes(24, 24, {9, 99, 199});
  const std::vector<uint8_t> pixels = test::decode_image(bytes).pixels;
  for (size_t lacks = 1; lacks <= kEndChunk; ++lacks) {
    bytes.pop_back();
    ImageDecoder decoder(bytes);
    std::vector<uint8_t> rgb;
    decoder.decode(1, rgb);
    EXPECT_EQ(rgb, pixels) << lacks;
    EXPECT_THAT(decoder.warning(), HasSubstr("the image is complete, but not the file")) << lacks;
  }
}

TEST(Image, APngCutInItsDataIsAnError) {
  constexpr size_t kEndChunk = 12;
  const Bytes whole = plain_png_bytes(24, 24, {9, 99, 199});
  for (size_t length = 8; length + kEndChunk < whole.size(); ++length) {
    EXPECT_THAT(failure_of_image(Bytes(whole.begin(), whole.begin() + static_cast<long>(length))),
                AllOf(HasSubstr("PNG"), HasSubstr("the file ends too early")))
        << length;
  }
}

TEST(Image, AnyFlippedByteOfAFileIsDecodedOrRefused) {
  const safetensors::File file(MOESAIC_TEST_SOURCE_DIR "/tests/golden/decode.safetensors");
  for (const char* name : {"png_3_4_interlaced", "png_4_16", "png_turned_6", "jpeg_turned_8",
                           "png_turned_raw_profile", "webp_turned_6"}) {
    const auto whole = decode_golden(file, std::string(name) + "/file");
    for (size_t at = 0; at < whole.size(); ++at) {
      Bytes bytes(whole.begin(), whole.end());
      bytes[at] ^= 0x55;
      try {
        ImageDecoder decoder(bytes, true);
        if (decoder.height() * decoder.width() > 1 << 22) continue;
        std::vector<uint8_t> rgb;
        decoder.decode(8, rgb);
        Rectangle held;
        ImageDecoder(bytes).decode_crop({0, 0, 1, 1}, 1, rgb, held);
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::failure);
        EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
      }
    }
  }
}

}  // namespace
}  // namespace moesaic
