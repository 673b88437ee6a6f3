// SPDX-License-Identifier: Apache-2.0
#include "moesaic/formats/cifar.h"

#include "formats/bytes.h"
#include "support/matchers.h"

namespace moesaic {
namespace {

/// Records of `label_bytes` labels counted up from `first` and pixels that tell their place.
Bytes batch(int64_t count, int64_t label_bytes, uint8_t first) {
  Bytes bytes;
  for (int64_t i = 0; i < count; ++i) {
    for (int64_t l = 0; l < label_bytes; ++l) {
      bytes.push_back(static_cast<uint8_t>(first + 10 * l + i));
    }
    for (int64_t p = 0; p < 3072; ++p) bytes.push_back(static_cast<uint8_t>(7 * i + p / 13));
  }
  return bytes;
}

class Cifar : public ::testing::Test {
 protected:
  std::string error(int64_t bytes) {
    return test::failure_of([&] {
      cifar::Records records;
      cifar::read(path_, bytes, {}, records);
    });
  }
  test::TempDir folder_;
  test::fs::path path_ = folder_.path() / "batch.bin";
};

TEST_F(Cifar, AppendsLabelsAndPlanes) {
  cifar::Records records;
  test::write_file(path_, batch(2, 1, 3));
  cifar::read(path_, 2 * 3073, {}, records);
  test::write_file(path_, test::gzip_bytes(batch(1, 2, 0)));
  cifar::read(path_, 3074, {2, 1}, records);
  EXPECT_THAT(records.labels, ElementsAre(3, 4, 10));
  ASSERT_EQ(records.pixels.size(), 3u * 3072);
  for (size_t p = 0; p < 3072; ++p) {
    ASSERT_EQ(records.pixels[p], static_cast<uint8_t>(p / 13));
    ASSERT_EQ(records.pixels[3072 + p], static_cast<uint8_t>(7 + p / 13));
    ASSERT_EQ(records.pixels[2 * 3072 + p], static_cast<uint8_t>(p / 13));
  }
}

TEST_F(Cifar, TheFirstLabelIsTheCoarseOne) {
  test::write_file(path_, batch(2, 2, 5));
  cifar::Records records;
  cifar::read(path_, 2 * 3074, {2, 0}, records);
  EXPECT_THAT(records.labels, ElementsAre(5, 6));
}

TEST_F(Cifar, WrongSizesAreRefused) {
  Bytes bytes = batch(2, 1, 0);
  bytes.pop_back();
  test::write_file(path_, bytes);
  EXPECT_THAT(error(2 * 3073), AllOf(HasSubstr(path_.string()), HasSubstr("6145 bytes unpacked")));
  test::write_file(path_, batch(3, 1, 0));
  EXPECT_THAT(error(2 * 3073), HasSubstr("more than 6146 bytes"));
  EXPECT_THAT(error(3000), HasSubstr("not a whole number of records of 3073"));
  test::write_file(path_, Bytes{});
  EXPECT_THAT(error(3073), HasSubstr("0 bytes unpacked, expected 3073"));
}

}  // namespace
}  // namespace moesaic
