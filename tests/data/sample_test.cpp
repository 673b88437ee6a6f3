// SPDX-License-Identifier: Apache-2.0
#include "moesaic/data/views.h"

#include <set>

#include "base/support.h"
#include "data/data_fixture.h"
#include "moesaic/data/derived.h"
#include "support/matchers.h"

namespace moesaic {
namespace {

/// Twelve images of one byte, their number, of three classes in turn.
std::shared_ptr<const Dataset> numbered() {
  const DatasetInfo info{"numbered", "train", "", {"a", "b", "c"}, 1, 1, 1, {0.5}, {0.2}};
  test::Bytes pixels, labels;
  for (uint8_t i = 0; i < 12; ++i) {
    pixels.push_back(i);
    labels.push_back(i % 3);
  }
  return make_memory_dataset(info, pixels, labels);
}

std::vector<int> numbers_in(const Dataset& data) {
  std::vector<int> numbers;
  for (int64_t i = 0; i < data.size(); ++i) {
    numbers.push_back(test::image_of(data, i)[0]);
    EXPECT_EQ(data.label(i), numbers.back() % 3);
  }
  return numbers;
}

TEST(Sample, IsDrawnByTheSeedWithoutRepetition) {
  const std::vector<int> seven = numbers_in(*make_sample(numbered(), 7, 1));
  EXPECT_EQ(std::set<int>(seven.begin(), seven.end()).size(), 7U);
  EXPECT_EQ(numbers_in(*make_sample(numbered(), 3, 1)), std::vector<int>(&seven[0], &seven[3]));
  EXPECT_NE(numbers_in(*make_sample(numbered(), 7, 2)), seven);
}

TEST(Sample, HasAsMuchOfEachClassAsThereIs) {
  const DatasetInfo info{"uneven", "train", "", {"a", "b", "c"}, 1, 1, 1, {0.5}, {0.2}};
  const auto uneven = make_memory_dataset(info, test::Bytes(9), {0, 0, 0, 0, 0, 0, 1, 2, 2});
  const auto data = make_sample(uneven, 7, 1);
  std::vector<int64_t> found;
  for (int64_t i = 0; i < 7; ++i) found.push_back(data->label(i));
  EXPECT_EQ(found, (std::vector<int64_t>{0, 1, 2, 0, 2, 0, 0}));
}

TEST(Sample, OfEndlessDataIsAPartOfTheStream) {
  const auto endless =
      make_mosaic(numbered(), {.deciding = {"a", "b"}, .grid = 2}, MosaicContent::images, "grids");
  const auto data = make_sample(endless, 5, 4);
  EXPECT_EQ(data->size(), 5);
  EXPECT_FALSE(data->is_endless());
  for (int64_t i = 0; i < 5; ++i) {
    EXPECT_EQ(test::image_of(*data, i), test::image_of(*endless, stream_offset(4) + i));
  }
}

TEST(Sample, IsNoLargerThanTheData) {
  EXPECT_THAT(test::failure_of([] { make_sample(numbered(), 13, 1); }),
              HasSubstr("'numbered': 13 samples are more than its 12"));
}

}  // namespace
}  // namespace moesaic
