// SPDX-License-Identifier: Apache-2.0
#include "moesaic/data/mosaic.h"

#include <gmock/gmock.h>

#include <set>

#include "data/data_fixture.h"

namespace moesaic {
namespace {

using test::Bytes;
using ::testing::HasSubstr;

/// Images of 2 x 3 bytes: a class in the tens, a number within the class in the ones.
std::shared_ptr<const Dataset> tagged(const std::string& split, std::vector<uint8_t> labels) {
  DatasetInfo info{"base", split, "", {"a", "b", "c", "d"}, 2, 2, 3, {0.5, 0.5}, {0.2, 0.2}};
  Bytes pixels;
  std::vector<int> seen(4, 0);
  for (const uint8_t label : labels) {
    const auto tag = static_cast<uint8_t>(10 * label + seen[label]++);
    for (int i = 0; i < 12; ++i) pixels.push_back(static_cast<uint8_t>(tag + 100 * (i / 6)));
  }
  return make_memory_dataset(info, pixels, std::move(labels));
}

std::shared_ptr<const Dataset> mosaic(const std::string& split = "train",
                                      MosaicConfig config = {.deciding = {"c", "a"}}) {
  config.grid = {2, 3};
  return make_mosaic(tagged(split, {0, 1, 2, 3, 2, 1, 0, 2, 3, 3}), config, MosaicOf::images,
                     "mine", "about");
}

Bytes mosaic_image(const Dataset& data, int64_t index) {
  Bytes bytes(static_cast<size_t>(data.image_size()));
  data.image(index, bytes.data());
  return bytes;
}

/// The byte of a channel at the corner of each tile.
std::vector<int> tags(const Bytes& image, int channel) {
  std::vector<int> found;
  for (int y = 0; y < 4; y += 2) {
    for (int x = 0; x < 9; x += 3)
      found.push_back(image[static_cast<size_t>(36 * channel + 9 * y + x)]);
  }
  return found;
}

TEST(Mosaic, HasOneDecidingImageAtThePlaceOfItsGroup) {
  const auto data = mosaic();
  EXPECT_EQ(data->info().classes, (std::vector<std::string>{"c", "a"}));
  EXPECT_EQ(data->info().groups.size(), 6U);
  EXPECT_EQ(data->info().height, 4);
  EXPECT_EQ(data->info().width, 9);
  EXPECT_EQ(data->info().mean, (std::vector<double>{0, 0}));
  std::set<int64_t> places;
  std::set<int> others;
  for (int64_t i = 0; i < 400; ++i) {
    EXPECT_EQ(data->label(i), i % 2);
    const Bytes image = mosaic_image(*data, i);
    const std::vector<int> found = tags(image, 0), second = tags(image, 1);
    const int64_t place = data->group(i);
    places.insert(place);
    for (int64_t j = 0; j < 6; ++j) {
      const int tag = found[static_cast<size_t>(j)];
      EXPECT_EQ(second[static_cast<size_t>(j)], tag + 100);
      if (j == place) {
        EXPECT_EQ(tag / 10, i % 2 == 0 ? 2 : 0) << i;
      } else {
        EXPECT_TRUE(tag / 10 == 1 || tag / 10 == 3) << tag;
        others.insert(tag);
      }
    }
  }
  EXPECT_EQ(places.size(), 6U);
  EXPECT_EQ(others, (std::set<int>{10, 11, 30, 31, 32}));
}

TEST(Mosaic, TilesAreWholeImages) {
  const auto data = mosaic();
  const Bytes image = mosaic_image(*data, 3);
  for (int y = 0; y < 4; ++y) {
    for (int x = 0; x < 9; ++x) {
      const int corner = image[static_cast<size_t>(9 * (y / 2 * 2) + x / 3 * 3)];
      EXPECT_EQ(image[static_cast<size_t>(9 * y + x)], corner);
    }
  }
}

TEST(Mosaic, IsAFunctionOfSeedSplitAndIndex) {
  const auto first = mosaic(), again = mosaic();
  MosaicConfig other{.deciding = {"c", "a"}, .seed = 2};
  bool differs_by_seed = false, differs_by_split = false;
  for (int64_t i = 5; i < 25; ++i) {
    EXPECT_EQ(mosaic_image(*first, i), mosaic_image(*again, i));
    differs_by_seed |= mosaic_image(*first, i) != mosaic_image(*mosaic("train", other), i);
    differs_by_split |= mosaic_image(*first, i) != mosaic_image(*mosaic("test"), i);
  }
  EXPECT_TRUE(differs_by_seed);
  EXPECT_TRUE(differs_by_split);
}

TEST(Mosaic, OnlyTrainingHasNoEnd) {
  MosaicConfig config{.deciding = {"c", "a"}, .train = 7, .test = 5};
  EXPECT_TRUE(mosaic("train", config)->endless());
  EXPECT_EQ(mosaic("train", config)->size(), 7);
  EXPECT_FALSE(mosaic("test", config)->endless());
  EXPECT_EQ(mosaic("test", config)->size(), 5);
  EXPECT_THAT(test::failure_of([&] { mosaic("test", config)->label(5); }),
              HasSubstr("image 5 of 5"));
}

TEST(Mosaic, RefusesClassesThatAreNotThere) {
  const auto refusal = [](const MosaicConfig& config) {
    return test::usage_of([&] { mosaic("train", config); });
  };
  EXPECT_THAT(refusal({.deciding = {"c", "e"}}),
              HasSubstr("mosaic.deciding: 'base' has no class 'e'"));
  EXPECT_THAT(refusal({.deciding = {"c", "a"}, .others = {"x"}}), HasSubstr("mosaic.others"));
  EXPECT_THAT(refusal({.deciding = {"c", "a"}, .others = {"a"}}), HasSubstr("'a' decides already"));
  EXPECT_THAT(refusal({.deciding = {"c"}}), HasSubstr("two classes that decide"));
  const auto without = [](MosaicOf of) {
    return make_mosaic(tagged("train", {0, 1, 1, 0}), {.deciding = {"c", "a"}}, of, "mine");
  };
  EXPECT_THAT(test::failure_of([&] { without(MosaicOf::images); }),
              HasSubstr("the train split of 'base' has no image of class 'c'"));
  EXPECT_EQ(without(MosaicOf::outline)->label(1), 1);
}

}  // namespace
}  // namespace moesaic
