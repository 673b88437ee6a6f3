// SPDX-License-Identifier: Apache-2.0
#include "moesaic/base/hash.h"

#include <gmock/gmock.h>

#include <utility>

#include "base/support.h"

namespace moesaic {
namespace {

std::span<const std::byte> bytes(std::string_view text) {
  return std::as_bytes(std::span(text));
}

// Examples of FIPS 180-2.
constexpr const char* kEmpty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
constexpr const char* kAbc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
constexpr const char* kMillion = "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0";

TEST(Sha256, AgreesWithTheStandard) {
  EXPECT_EQ(sha256_hex({}), kEmpty);
  EXPECT_EQ(sha256_hex(bytes("abc")), kAbc);
}

TEST(Sha256, TakesPiecesAndGoesOnAfterHex) {
  Sha256 hash;
  EXPECT_EQ(hash.hex(), kEmpty);
  hash.update(bytes("a"));
  hash.update(bytes("bc"));
  EXPECT_EQ(hash.hex(), kAbc);
  Sha256 moved(std::move(hash));
  moved.update(bytes("d"));
  EXPECT_EQ(moved.hex(), sha256_hex(bytes("abcd")));
}

TEST(Sha256, HashesFiles) {
  const test::TempDir folder;
  test::put(folder / "x", std::string(1'000'000, 'a'));
  EXPECT_EQ(sha256_file_hex(folder / "x"), kMillion);
  test::put(folder / "empty", "");
  EXPECT_EQ(sha256_file_hex(folder / "empty"), kEmpty);
  EXPECT_THAT(test::failure_of([&] { sha256_file_hex(folder / "none"); }),
              ::testing::HasSubstr("none"));
  test::failure_of([&] { sha256_file_hex(folder.path()); });
}

TEST(Crc32c, AgreesWithTheStandard) {
  const auto crc = [](std::string_view text) { return crc32c(std::as_bytes(std::span(text))); };
  EXPECT_EQ(crc(""), 0u);
  EXPECT_EQ(crc("123456789"), 0xe3069283u);
  EXPECT_EQ(crc(std::string(32, '\0')), 0x8a9136aau);    // RFC 3720, B.4
  EXPECT_EQ(crc(std::string(32, '\xff')), 0x62a8ab43u);  // RFC 3720, B.4
}

}  // namespace
}  // namespace moesaic
