// SPDX-License-Identifier: Apache-2.0
#include "moesaic/data/transforms.h"

#include <map>
#include <set>
#include <tuple>

#include "data/data_fixture.h"
#include "moesaic/config/document.h"
#include "support/matchers.h"

namespace moesaic {
namespace {

using test::usage_of;

DatasetInfo two_channels() {
  return {.name = "pair",
          .channels = 2,
          .height = 4,
          .width = 5,
          .mean = {0.25, 0.5},
          .std = {0.5, 0.3}};
}

std::vector<uint8_t> image() {
  std::vector<uint8_t> pixels(2 * 4 * 5);
  for (size_t i = 0; i < pixels.size(); ++i) pixels[i] = static_cast<uint8_t>(1 + 61 * i);
  return pixels;
}

float normalised(const DatasetInfo& info, int64_t channel, uint8_t byte) {
  const auto c = static_cast<size_t>(channel);
  return (static_cast<float>(byte) / 255.0f - static_cast<float>(info.mean[c])) /
         static_cast<float>(info.std[c]);
}

/// Flip, then shift down by dy and right by dx, pixel by pixel.
std::vector<float> expected(const DatasetInfo& info, const std::vector<uint8_t>& in, bool flip,
                            int64_t dy, int64_t dx) {
  std::vector<float> out;
  for (int64_t c = 0; c < info.channels; ++c) {
    for (int64_t y = 0; y < info.height; ++y) {
      for (int64_t x = 0; x < info.width; ++x) {
        const int64_t from_y = y - dy;
        int64_t from_x = x - dx;
        const bool inside =
            from_y >= 0 && from_y < info.height && from_x >= 0 && from_x < info.width;
        if (flip) from_x = info.width - 1 - from_x;
        const int64_t at = (c * info.height + from_y) * info.width + from_x;
        out.push_back(normalised(info, c, inside ? in[static_cast<size_t>(at)] : 0));
      }
    }
  }
  return out;
}

std::vector<float> transformed(const ImageTransform& transform, CounterRng rng) {
  std::vector<float> out(2 * 4 * 5, -99.0f);
  std::vector<uint8_t> in = image();
  transform(in.data(), rng, out.data());
  return out;
}

TEST(ImageTransform, NormalisesEachChannel) {
  const DatasetInfo info = two_channels();
  CounterRng used(1, 2, 3), fresh(1, 2, 3);
  std::vector<float> out(40);
  std::vector<uint8_t> in = image();
  const ImageTransform transform(info);
  transform(in.data(), used, out.data());
  EXPECT_EQ(out, expected(info, in, false, 0, 0));
  EXPECT_EQ(used.next(), fresh.next()) << "no random number is used where nothing is random";
}

TEST(ImageTransform, EveryOutcomeIsAFlipAndAShift) {
  const DatasetInfo info = two_channels();
  const ImageTransform transform(info, {true, 2});
  std::map<std::vector<float>, std::tuple<bool, int64_t, int64_t>> outcomes;
  for (const bool flip : {false, true}) {
    for (int64_t dy = -2; dy <= 2; ++dy) {
      for (int64_t dx = -2; dx <= 2; ++dx) {
        outcomes[expected(info, image(), flip, dy, dx)] = {flip, dy, dx};
      }
    }
  }
  ASSERT_EQ(outcomes.size(), 50u);
  std::map<std::tuple<bool, int64_t, int64_t>, int> seen;
  for (int64_t position = 0; position < 5000; ++position) {
    const auto found = outcomes.find(transformed(transform, augment_rng(7, 0, position)));
    ASSERT_NE(found, outcomes.end()) << position;
    ++seen[found->second];
  }
  EXPECT_EQ(seen.size(), 50u);
  for (const auto& [outcome, count] : seen) {  // 100 expected, standard deviation 10
    EXPECT_GT(count, 50);
    EXPECT_LT(count, 150);
  }
}

TEST(ImageTransform, DrawsFlipThenDownThenRight) {
  const DatasetInfo info = two_channels();
  const ImageTransform transform(info, {true, 2});
  for (int64_t position = 0; position < 100; ++position) {
    CounterRng rng = augment_rng(9, 4, position);
    const bool flip = rng.randint(2) == 1;
    const int64_t down = static_cast<int64_t>(rng.randint(5)) - 2;
    const int64_t right = static_cast<int64_t>(rng.randint(5)) - 2;
    EXPECT_EQ(transformed(transform, augment_rng(9, 4, position)),
              expected(info, image(), flip, down, right))
        << position;
  }
}

TEST(ImageTransform, FlipsBeforeRandAugmentAndShiftsAfter) {
  DatasetInfo info = two_channels();
  info.channels = 1;
  info.mean = {0.25};
  info.std = {0.5};
  AugmentConfig augment{true, 2};
  augment.rand_augment.emplace();
  const ImageTransform transform(info, augment);
  for (int64_t position = 0; position < 200; ++position) {
    std::vector<uint8_t> given = image(), wanted(20);
    given.resize(20);
    CounterRng rng = augment_rng(9, 4, position);
    const bool flip = rng.randint(2) == 1;
    for (size_t i = 0; i < 20; ++i) wanted[i] = given[flip ? i / 5 * 5 + 4 - i % 5 : i];
    rand_augment(*augment.rand_augment, rng, {1, 4, 5, wanted.data()});
    const int64_t down = static_cast<int64_t>(rng.randint(5)) - 2;
    const int64_t right = static_cast<int64_t>(rng.randint(5)) - 2;
    std::vector<float> out(20);
    CounterRng again = augment_rng(9, 4, position);
    transform(given.data(), again, out.data());
    EXPECT_EQ(out, expected(info, wanted, false, down, right)) << position;
  }
}

TEST(ImageTransform, FlipAndShiftWorkAlone) {
  const DatasetInfo info = two_channels();
  const ImageTransform flips(info, {true, 0});
  const ImageTransform shifts(info, {false, 3});
  const std::vector<float> straight = expected(info, image(), false, 0, 0);
  const std::vector<float> mirrored = expected(info, image(), true, 0, 0);
  std::set<std::vector<float>> shifted, seen;
  for (int64_t dy = -3; dy <= 3; ++dy) {
    for (int64_t dx = -3; dx <= 3; ++dx) shifted.insert(expected(info, image(), false, dy, dx));
  }
  int mirrors = 0;
  for (int64_t position = 0; position < 1000; ++position) {
    const std::vector<float> out = transformed(flips, augment_rng(3, 1, position));
    ASSERT_TRUE(out == straight || out == mirrored);
    if (out == mirrored) ++mirrors;
    const std::vector<float> moved = transformed(shifts, augment_rng(3, 1, position));
    ASSERT_TRUE(shifted.contains(moved));
    seen.insert(moved);
  }
  EXPECT_NEAR(mirrors, 500, 80);
  EXPECT_EQ(seen.size(), 49u);
}

TEST(ImageTransform, UncoveredPixelsLookLikeByteZero) {
  DatasetInfo info = two_channels();
  const ImageTransform transform(info, {false, 3});
  std::vector<uint8_t> black(40, 0);
  for (int64_t position = 0; position < 50; ++position) {
    CounterRng rng = augment_rng(5, 0, position);
    std::vector<float> out(40);
    transform(black.data(), rng, out.data());
    EXPECT_EQ(out, expected(info, black, false, 0, 0));
  }
}

TEST(AugmentRng, SeedEpochAndPositionEachMatter) {
  const auto first = [](uint64_t seed, int64_t epoch, int64_t position) {
    return augment_rng(seed, epoch, position).next();
  };
  EXPECT_EQ(first(1, 2, 3), first(1, 2, 3));
  EXPECT_NE(first(1, 2, 3), first(2, 2, 3));
  EXPECT_NE(first(1, 2, 3), first(1, 3, 3));
  EXPECT_NE(first(1, 2, 3), first(1, 2, 4));
  EXPECT_NE(first(1, 2, 3), first(1, 3, 2));
}

TEST(ImageTransform, WrongSettingsAreRefused) {
  const auto refuse = [](const DatasetInfo& info, AugmentConfig augment) {
    return usage_of([&] { ImageTransform transform(info, augment); });
  };
  DatasetInfo info = two_channels();
  EXPECT_THAT(refuse(info, {false, 4}), AllOf(HasSubstr("max_shift is 4"), HasSubstr("0 to 3")));
  EXPECT_THAT(refuse(info, {false, -1}), HasSubstr("max_shift is -1"));
  info.std = {0.5, 0.0};
  EXPECT_THAT(refuse(info, {}), HasSubstr("std of channel 1"));
  info.std = {0.5};
  EXPECT_THAT(refuse(info, {}), HasSubstr("found 2 and 1"));
}

TEST(AugmentConfig, IsDescribed) {
  const auto read = [](const std::string& text) {
    return parse<AugmentConfig>(Document::from_text(text, "recipe").root());
  };
  EXPECT_TRUE(read(R"({"flip": true})").flip);
  EXPECT_EQ(read(R"({"max_shift": 2})").max_shift, 2);
  EXPECT_FALSE(read("{}").flip);
  EXPECT_EQ(read("{}").max_shift, 0);
  EXPECT_THAT(usage_of([&] { read(R"({"max_shift": -1})"); }), HasSubstr("max_shift"));
  EXPECT_THAT(usage_of([&] { read(R"({"flop": true})"); }), HasSubstr("flip"));
}

}  // namespace
}  // namespace moesaic
