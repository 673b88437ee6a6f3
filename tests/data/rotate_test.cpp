// SPDX-License-Identifier: Apache-2.0
#include "moesaic/data/derived.h"
#include "moesaic/data/views.h"

#include <cmath>
#include <fstream>
#include <numbers>

#include "data/data_fixture.h"
#include "moesaic/data/preprocess.h"
#include "moesaic/formats/safetensors.h"
#include "support/matchers.h"

namespace moesaic {
namespace {

using test::failure_of;
using test::image_of;
using test::usage_of;

/// Images of side x side bytes that tell every place apart.
std::shared_ptr<const Dataset> patterned(int64_t height, int64_t width) {
  DatasetInfo info{"base", "train", "", {"a", "b", "c"}, 3, height, width, {0, 0, 0}, {1, 1, 1}};
  const auto size = static_cast<size_t>(3 * height * width);
  Bytes pixels(4 * size);
  for (size_t i = 0; i < pixels.size(); ++i) {
    pixels[i] = static_cast<uint8_t>(1 + (i * 97 + i / size) % 251);
  }
  return make_memory_dataset(info, pixels, {2, 0, 1, 2});
}

/// By a plain search: the pixel of `in` whose square holds the place that is turned there.
Bytes turned(const Bytes& in, int64_t height, int64_t width, double degrees) {
  const double angle = degrees * std::numbers::pi / 180.0;
  Bytes out(in.size(), 0);
  for (int64_t y = 0; y < height; ++y) {
    for (int64_t x = 0; x < width; ++x) {
      // Upwards and to the right of the middle; turned back, clockwise.
      const double right = static_cast<double>(x) + 0.5 - static_cast<double>(width) / 2.0;
      const double up = static_cast<double>(height) / 2.0 - static_cast<double>(y) - 0.5;
      const double from_right = right * std::cos(angle) + up * std::sin(angle);
      const double from_up = up * std::cos(angle) - right * std::sin(angle);
      const auto column = std::floor(from_right + static_cast<double>(width) / 2.0);
      const auto row = std::floor(static_cast<double>(height) / 2.0 - from_up);
      if (column < 0 || row < 0 || column >= static_cast<double>(width) ||
          row >= static_cast<double>(height)) {
        continue;
      }
      for (int64_t c = 0; c < 3; ++c) {
        const int64_t from = (c * height + static_cast<int64_t>(row)) * width;
        out[static_cast<size_t>((c * height + y) * width + x)] =
            in[static_cast<size_t>(from + static_cast<int64_t>(column))];
      }
    }
  }
  return out;
}

TEST(RotatedPairs, EachImageComesTwiceAndItsClassIsItsGroup) {
  const auto base = patterned(9, 9);
  const auto pairs = make_rotated_pairs(base, {}, "pairs", "a task");
  EXPECT_EQ(pairs->size(), 8);
  EXPECT_THAT(pairs->info().classes, ElementsAre("original", "rotated"));
  EXPECT_THAT(pairs->info().groups, ElementsAre("a", "b", "c"));
  EXPECT_THAT(test::labels_of(*pairs), ElementsAre(0, 1, 0, 1, 0, 1, 0, 1));
  std::vector<int64_t> groups;
  for (int64_t i = 0; i < 8; ++i) groups.push_back(pairs->group(i));
  EXPECT_THAT(groups, ElementsAre(2, 2, 0, 0, 1, 1, 2, 2));
  for (int64_t i = 0; i < 4; ++i) EXPECT_EQ(image_of(*pairs, 2 * i), image_of(*base, i));
  EXPECT_THAT(failure_of([&] { pairs->label(8); }), HasSubstr("image 8 of 8"));
  EXPECT_THAT(failure_of([&] { base->group(0); }), HasSubstr("no group"));
  EXPECT_EQ(preprocessed(pairs, PreprocessConfig{.values = "unit"})->group(2), 0);
  EXPECT_EQ(make_first_n(pairs, 3, "few")->group(2), 0);
  EXPECT_EQ(make_class_subset(pairs, {"rotated"}, "turned")->group(1), 0);
}

TEST(RotatedPairs, MayHaveJointLabelsOfClassAndRotation) {
  const auto base = patterned(9, 9);
  const auto pairs = make_rotated_pairs(base, {.degrees = 180.0, .joint = true}, "pairs");
  EXPECT_THAT(pairs->info().classes,
              ElementsAre("a", "a rotated", "b", "b rotated", "c", "c rotated"));
  EXPECT_THAT(test::labels_of(*pairs), ElementsAre(4, 5, 0, 1, 2, 3, 4, 5));
  EXPECT_EQ(pairs->group(1), 2);
  EXPECT_EQ(usage_of([&] { make_rotated_pairs(pairs, {.joint = true}, "again"); }),
            "dataset 'again': rotate.joint needs classes that are not rotated, but 'pairs' has "
            "'a rotated'; choose rotate.joint=false");
  // By 180 degrees every pixel has its own place.
  const auto turned = make_rotated_pairs(pairs, {.degrees = 180.0}, "twice");
  for (int64_t i = 0; i < 4; ++i) EXPECT_EQ(image_of(*turned, 4 * i + 3), image_of(*base, i));
}

TEST(RotatedPairs, TakesTheNearestPixelAndNothingBesideTheImage) {
  for (const auto& [height, width] : {std::pair<int64_t, int64_t>{9, 9}, {8, 11}, {1, 1}}) {
    const auto base = patterned(height, width);
    for (const double degrees : {30.0, 90.0, 171.5, 300.0}) {
      if (degrees == 90.0 && (height + width) % 2 == 1) continue;  // only ties
      const auto pairs = make_rotated_pairs(base, {.degrees = degrees}, "pairs");
      for (int64_t i = 0; i < 4; ++i) {
        EXPECT_EQ(image_of(*pairs, 2 * i + 1), turned(image_of(*base, i), height, width, degrees))
            << degrees;
      }
    }
  }
}

Bytes golden_bytes(const std::string& name) {
  const safetensors::File file(MOESAIC_TEST_SOURCE_DIR "/tests/golden/images.safetensors");
  const safetensors::Entry* const entry = file.find(name);
  if (entry == nullptr) throw std::out_of_range("no tensor is called " + name);
  const auto bytes = file.bytes(*entry);
  Bytes copy(bytes.size());
  std::memcpy(copy.data(), bytes.data(), bytes.size());
  return copy;
}

TEST(RotatedPairs, RotatesAsPillowDoes) {
  DatasetInfo info{"one", "train", "", {"a"}, 3, 32, 32, {0, 0, 0}, {1, 1, 1}};
  const auto base = make_memory_dataset(info, golden_bytes("rotate/image"), {0});
  EXPECT_EQ(image_of(*make_rotated_pairs(base, {}, "pairs"), 1), golden_bytes("rotate/by30"));
}

TEST(RotatedPairs, BothAreCutOutOfTheMiddleAndResized) {
  const auto base = patterned(32, 32);
  const auto whole = make_rotated_pairs(base, {}, "whole");
  const auto cut = make_rotated_pairs(base, {.crop = 24}, "cut");
  // Where nothing is beside the image, a rotation cannot be told by black corners.
  const auto wanted = preprocessed(whole, PreprocessConfig{.size = 32, .central_crop = 0.75});
  for (int64_t i = 0; i < 8; ++i) {
    EXPECT_EQ(image_of(*cut, i), image_of(*wanted, i));
    EXPECT_THAT(image_of(*cut, i), ::testing::Not(::testing::Contains(0)));
  }
}

TEST(RotatedPairs, RefusesACropThatIsLargerThanTheImages) {
  EXPECT_THAT(usage_of([] { make_rotated_pairs(patterned(8, 11), {.crop = 9}, "pairs"); }),
              HasSubstr("rotate.crop is 9, but images of 'base' are 8 x 11"));
}

}  // namespace
}  // namespace moesaic
