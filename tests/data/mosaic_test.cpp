// SPDX-License-Identifier: Apache-2.0
#include "moesaic/data/derived.h"

#include <algorithm>
#include <set>

#include "data/data_fixture.h"
#include "moesaic/data/resize.h"
#include "support/matchers.h"

namespace moesaic {
namespace {

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
  return make_mosaic(tagged(split, {0, 1, 2, 3, 2, 1, 0, 2, 3, 3}), config, MosaicContent::images,
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

TEST(Mosaic, TilesAreUncroppedImages) {
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

/// Colour images of 6 x 8 bytes, of classes a, b, a, b, ...
std::shared_ptr<const Dataset> colours(int count) {
  DatasetInfo info{"base", "train", "", {"a", "b", "c"}, 3, 6, 8, {0, 0, 0}, {1, 1, 1}};
  Bytes pixels(static_cast<size_t>(count) * 144), labels;
  for (size_t i = 0; i < pixels.size(); ++i) pixels[i] = static_cast<uint8_t>(i * i / 7 + 31 * i);
  for (int i = 0; i < count; ++i) labels.push_back(static_cast<uint8_t>(i % 3));
  return make_memory_dataset(info, pixels, labels);
}

TEST(Mosaic, TilesAreResizedAsTheyAreAsked) {
  const auto base = colours(3);  // One image of each class: what is drawn is known.
  MosaicConfig config{.deciding = {"a", "b"}, .tile = Size2d(3, 4)};
  config.grid = {1, 2};
  const auto data = make_mosaic(base, config, MosaicContent::images, "mine");
  EXPECT_EQ(data->info().channels, 3);
  EXPECT_EQ(data->info().height, 3);
  EXPECT_EQ(data->info().width, 8);
  const auto small = [&](int64_t index) {
    Bytes out(36);
    Bitmap bitmap;
    const auto whole = [](int64_t height, int64_t width) { return Rectangle{0, 0, height, width}; };
    const Rectangle part = base->decode(index, whole, {4}, bitmap);
    resize(bitmap, part, {.antialias = true}, 3, 4, out.data());
    return out;
  };
  for (int64_t i = 0; i < 8; ++i) {
    const Bytes image = mosaic_image(*data, i);
    const int64_t place = data->group(i);
    for (int64_t j = 0; j < 2; ++j) {
      const Bytes expected = small(j == place ? i % 2 : 2);
      for (size_t row = 0; row < 9; ++row) {  // Three of each channel.
        EXPECT_TRUE(std::equal(expected.begin() + 4 * static_cast<int64_t>(row),
                               expected.begin() + 4 * static_cast<int64_t>(row) + 4,
                               image.begin() + 8 * static_cast<int64_t>(row) + 4 * j))
            << i << " " << j << " " << row;
      }
    }
  }
}

TEST(Mosaic, WithoutReplacementEveryDecidingImageComesBeforeAnyComesAgain) {
  const auto deciding = [](const Dataset& data, int64_t index) {
    return tags(mosaic_image(data, index), 0)[static_cast<size_t>(data.group(index))];
  };
  const auto drawn = [&](const std::vector<uint8_t>& labels, int64_t seed) {
    MosaicConfig config{.deciding = {"c", "a"}, .seed = seed, .replacement = false};
    config.grid = {2, 3};
    const auto data = make_mosaic(tagged("train", labels), config, MosaicContent::images, "mine");
    std::vector<int> found;
    for (int64_t i = 0; i < 24; i += 2) found.push_back(deciding(*data, i));
    return found;
  };
  const std::vector<uint8_t> six_of_c = {2, 2, 0, 2, 1, 2, 2, 2, 3};
  const std::vector<int> once = drawn(six_of_c, 1);
  EXPECT_EQ(std::set<int>(once.begin(), once.begin() + 6), (std::set<int>{20, 21, 22, 23, 24, 25}));
  EXPECT_TRUE(std::equal(once.begin(), once.begin() + 6, once.begin() + 6)) << "the next pass";
  EXPECT_EQ(drawn(six_of_c, 1), once);
  EXPECT_NE(drawn(six_of_c, 2), once);
  EXPECT_FALSE(std::is_sorted(once.begin(), once.begin() + 6)) << "an order of their own";
}

TEST(Mosaic, OnlyTrainingHasNoEnd) {
  MosaicConfig config{.deciding = {"c", "a"}, .num_train = 7, .num_test = 5};
  EXPECT_TRUE(mosaic("train", config)->is_endless());
  EXPECT_EQ(mosaic("train", config)->size(), 7);
  EXPECT_FALSE(mosaic("test", config)->is_endless());
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
  const auto without = [](MosaicContent of) {
    return make_mosaic(tagged("train", {0, 1, 1, 0}), {.deciding = {"c", "a"}}, of, "mine");
  };
  EXPECT_THAT(test::failure_of([&] { without(MosaicContent::images); }),
              HasSubstr("the train split of 'base' has no image of class 'c'"));
  EXPECT_EQ(without(MosaicContent::metadata)->label(1), 1);
}

}  // namespace
}  // namespace moesaic
