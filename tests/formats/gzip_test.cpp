// SPDX-License-Identifier: Apache-2.0
#include "moesaic/formats/gzip.h"

#include <utility>

#include "base/support.h"
#include "formats/pack.h"
#include "support/matchers.h"

namespace moesaic {
namespace {

std::string text(const std::vector<uint8_t>& bytes) {
  return {bytes.begin(), bytes.end()};
}

// A file of up to `size` bytes, with the read at its end that verifies the checksum.
std::string unpacked(const std::filesystem::path& path, uint64_t size) {
  UnpackedReader reader(path);
  std::string content = text(reader.read_up_to(size));
  uint8_t more = 0;
  EXPECT_EQ(reader.read({&more, 1}), 0u);
  return content;
}

// Compresses badly, so that a cut or flipped byte hits real data.
std::string noise(std::size_t n) {
  std::string bytes;
  uint32_t x = 1;
  while (bytes.size() < n) bytes += static_cast<char>((x = x * 1664525 + 1013904223) >> 24);
  return bytes;
}

TEST(UnpackedReader, GoesByContentAndNotByName) {
  const test::TempDir folder;
  test::put(folder / "plain.gz", "hello");
  test::put(folder / "packed.txt", test::gzip("hello"));
  EXPECT_EQ(unpacked(folder / "plain.gz", 5), "hello");
  EXPECT_EQ(unpacked(folder / "packed.txt", 5), "hello");
}

TEST(UnpackedReader, AcceptsEmptyContent) {
  const test::TempDir folder;
  test::put(folder / "plain", "");
  test::put(folder / "packed", test::gzip(""));
  EXPECT_TRUE(unpacked(folder / "plain", 0).empty());
  EXPECT_TRUE(unpacked(folder / "packed", 0).empty());
}

TEST(UnpackedReader, UnpacksLargeAndSeveralMembers) {
  const test::TempDir folder;
  const std::string large = noise(3'500'000);
  test::put(folder / "x", test::gzip(large) + test::gzip("") + test::gzip("tail"));
  EXPECT_EQ(unpacked(folder / "x", 10'000'000), large + "tail");
}

TEST(UnpackedReader, ReadsNoMoreThanTheLimit) {
  const test::TempDir folder;
  test::put(folder / "plain", "hello");
  test::put(folder / "bomb", test::gzip(std::string(50'000'000, '\0')));
  EXPECT_EQ(text(UnpackedReader(folder / "plain").read_up_to(4)), "hell");
  EXPECT_EQ(UnpackedReader(folder / "bomb").read_up_to(1000).size(), 1000u);
}

TEST(UnpackedReader, SeesEveryTruncation) {
  const test::TempDir folder;
  const std::string packed = test::gzip(noise(300));
  for (std::size_t n = 2; n < packed.size(); ++n) {
    test::put(folder / "x", packed.substr(0, n));
    EXPECT_THAT(test::failure_of([&] { unpacked(folder / "x", 1000); }),
                HasSubstr((folder / "x").string()))
        << n;
  }
}

TEST(UnpackedReader, SeesEveryFlippedByteOfTheData) {
  const test::TempDir folder;
  const std::string packed = test::gzip(noise(300));
  constexpr std::size_t kHeader = 10;  // its time stamp and system carry no checksum
  for (std::size_t i = kHeader; i < packed.size(); ++i) {
    std::string altered = packed;
    altered[i] = static_cast<char>(altered[i] ^ 0xff);
    test::put(folder / "x", altered);
    EXPECT_THAT(test::failure_of([&] { unpacked(folder / "x", 1'000'000); }),
                HasSubstr((folder / "x").string()))
        << i;
  }
}

TEST(UnpackedReader, SeesAMissingChecksumWhereAllBytesAreThere) {
  const test::TempDir folder;
  for (const std::size_t size : {100'000, 1 << 21, 3'000'000}) {
    const std::string packed = test::gzip(noise(size));
    for (std::size_t missing = 1; missing <= 8; ++missing) {
      test::put(folder / "x", packed.substr(0, packed.size() - missing));
      EXPECT_THAT(test::failure_of([&] { unpacked(folder / "x", size); }), HasSubstr("truncated"))
          << size << " " << missing;
    }
  }
}

TEST(UnpackedReader, PassesOverTrailingBytes) {
  const test::TempDir folder;
  test::put(folder / "tail", test::gzip("hello") + "junk");
  EXPECT_EQ(unpacked(folder / "tail", 1000), "hello");
}

TEST(UnpackedReader, SeesAWrongChecksum) {
  const test::TempDir folder;
  std::string packed = test::gzip("hello");
  packed[packed.size() - 8] ^= 1;
  test::put(folder / "crc", packed);
  EXPECT_THAT(test::failure_of([&] { unpacked(folder / "crc", 1000); }),
              AllOf(HasSubstr((folder / "crc").string()), HasSubstr("incorrect data check")));
}

TEST(UnpackedReader, ReadsInPieces) {
  const test::TempDir folder;
  const std::string content = noise(10'000);
  test::put(folder / "plain", content);
  test::put(folder / "packed", test::gzip(content));
  for (const char* name : {"plain", "packed"}) {
    UnpackedReader first(folder / name);
    UnpackedReader reader(std::move(first));
    std::string joined;
    std::array<uint8_t, 777> piece;
    std::size_t n = 0;
    do {
      n = reader.read(piece);
      joined.append(piece.begin(), piece.begin() + static_cast<std::ptrdiff_t>(n));
    } while (n == piece.size());
    EXPECT_EQ(joined, content) << name;
    EXPECT_EQ(reader.read(piece), 0u);
    EXPECT_GE(reader.max_unpacked_size(), content.size());
    EXPECT_EQ(reader.is_compressed(), std::string(name) == "packed");
  }
}

TEST(UnpackedReader, NamesAMissingFile) {
  EXPECT_THAT(test::failure_of([] { UnpackedReader reader("/nonexistent/x"); }),
              HasSubstr("/nonexistent/x"));
}

}  // namespace
}  // namespace moesaic
