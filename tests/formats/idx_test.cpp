// SPDX-License-Identifier: Apache-2.0
#include "moesaic/formats/idx.h"

#include "base/support.h"
#include "formats/pack.h"
#include "support/matchers.h"

namespace moesaic {
namespace {

std::string header(const std::vector<uint32_t>& shape, char type = 8) {
  std::string bytes = {0, 0, type, static_cast<char>(shape.size())};
  for (const uint32_t n : shape) bytes += test::big_endian32(n);
  return bytes;
}

class IdxTest : public ::testing::Test {
 protected:
  idx::Array read(const std::string& bytes) {
    test::put(path_, bytes);
    return idx::read(path_);
  }
  // The message, which must name the file, for content that must be refused, packed or not.
  std::string refused(const std::string& bytes) {
    const std::string message = test::failure_of([&] { read(bytes); });
    EXPECT_THAT(message, HasSubstr(path_.string()));
    EXPECT_THAT(test::failure_of([&] { read(test::gzip(bytes)); }), HasSubstr(path_.string()));
    return message;
  }

  test::TempDir folder_;
  std::filesystem::path path_ = folder_ / "train-images-idx3-ubyte";
};

TEST_F(IdxTest, ReadsEveryRankPlainAndPacked) {
  const std::vector<std::vector<uint32_t>> shapes = {{6}, {2, 3}, {1, 2, 3}, {3, 1, 2, 1}};
  const std::string values("\x00\x01\x7f\x80\xfe\xff", 6);
  for (const auto& shape : shapes) {
    for (const bool packed : {false, true}) {
      const std::string bytes = header(shape) + values;
      const idx::Array array = read(packed ? test::gzip(bytes) : bytes);
      EXPECT_EQ(array.shape, std::vector<int64_t>(shape.begin(), shape.end()));
      EXPECT_THAT(array.values, ElementsAre(0, 1, 127, 128, 254, 255));
    }
  }
}

TEST_F(IdxTest, ReadsAnEmptyArray) {
  const idx::Array array = read(header({0, 28, 28}));
  EXPECT_THAT(array.shape, ElementsAre(0, 28, 28));
  EXPECT_TRUE(array.values.empty());
}

TEST_F(IdxTest, ReadsMoreThanOnePiece) {
  const std::string values(3'000'000, 'v');
  EXPECT_EQ(read(test::gzip(header({3, 1'000'000}) + values)).values,
            std::vector<uint8_t>(values.begin(), values.end()));
}

TEST_F(IdxTest, RefusesTruncatedValues) {
  EXPECT_THAT(refused(header({2, 3}) + "abcde"),
              AllOf(HasSubstr("[2, 3]"), HasSubstr("18 bytes expected"), HasSubstr("found 17")));
  EXPECT_THAT(test::failure_of([&] {
                read(test::gzip(header({2, 3}) + "abcde"));
              }),
              AllOf(HasSubstr("18 bytes expected"), HasSubstr("found 17 when unpacked")));
}

TEST_F(IdxTest, RefusesTrailingBytes) {
  EXPECT_THAT(refused(header({2, 3}) + "abcdefgh"),
              AllOf(HasSubstr("18 bytes expected"), HasSubstr("found 20")));
  EXPECT_THAT(test::failure_of([&] {
                read(test::gzip(header({2, 3}) + "abcdefgh"));
              }),
              HasSubstr("found 20 when unpacked"));
}

TEST_F(IdxTest, RefusesEveryTruncatedHeader) {
  const std::string whole = header({2, 3});
  for (std::size_t n = 0; n < whole.size(); ++n) {
    EXPECT_THAT(refused(whole.substr(0, n)), HasSubstr("truncated IDX header")) << n;
  }
}

TEST_F(IdxTest, RefusesAnotherMagicTypeOrRank) {
  EXPECT_THAT(refused("\x89PNG\r\n"), AllOf(HasSubstr("not an IDX file"), HasSubstr("89 50")));
  EXPECT_THAT(refused(std::string("\0\1\x8\1\0\0\0\1x", 9)), HasSubstr("found 00 01"));
  EXPECT_THAT(refused(header({1}, 0x0d) + "x"),
              AllOf(HasSubstr("type code 08"), HasSubstr("found 0d")));
  EXPECT_THAT(refused(header({})), AllOf(HasSubstr("rank from 1 to 4"), HasSubstr("found 0")));
  EXPECT_THAT(refused(header({1, 1, 1, 1, 1}) + "x"), HasSubstr("found 5"));
}

TEST_F(IdxTest, RefusesAbsurdSizesBeforeAllocating) {
  EXPECT_THAT(refused(header({0xffffffff}) + "x"), HasSubstr("4294967303 bytes expected"));
  // 2^32 by 2^32 would wrap around to 0 in 64 bits.
  EXPECT_THAT(refused(header({0x80000000, 0x80000000, 4}) + "x"),
              HasSubstr("larger than any file"));
  EXPECT_THAT(refused(header({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff})),
              HasSubstr("larger than any file"));
  // Product just below 2^64: only adding the header overflows.
  EXPECT_THAT(refused(header({0xffffffff, 0x80000000, 2})), HasSubstr("expected"));
}

// The compressed size alone would allow what the header claims, the content does not hold it.
TEST_F(IdxTest, ReadsNoFurtherThanTheContent) {
  std::string noise;
  for (uint32_t x = 1; noise.size() < 300'000;) {
    noise += static_cast<char>((x = x * 1664525 + 1013904223) >> 24);
  }
  EXPECT_THAT(test::failure_of([&] { read(test::gzip(header({200'000'000}) + noise)); }),
              HasSubstr("200000008 bytes expected, found 300008 when unpacked"));
}

TEST_F(IdxTest, RefusesAlteredGzip) {
  std::string packed = test::gzip(header({2, 3}) + "abcdef");
  packed[packed.size() - 6] ^= 1;  // in the stored checksum
  EXPECT_THAT(test::failure_of([&] { read(packed); }),
              AllOf(HasSubstr(path_.string()), HasSubstr("incorrect data check")));
}

TEST_F(IdxTest, NamesAMissingFile) {
  EXPECT_THAT(test::failure_of([&] { idx::read(path_); }), HasSubstr(path_.string()));
}

}  // namespace
}  // namespace moesaic
