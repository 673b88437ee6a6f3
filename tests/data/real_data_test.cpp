// SPDX-License-Identifier: Apache-2.0
// The datasets that come with the source tree. Where their files are not on this machine, tests are
// skipped and say so.

#include <algorithm>
#include <cmath>

#include "data/data_fixture.h"
#include "moesaic/data/dataset.h"
#include "moesaic/data/preprocess.h"
#include "moesaic/data/source.h"
#include "moesaic/formats/archive.h"
#include "support/matchers.h"

namespace moesaic {
namespace {

using test::image_of;
using test::said_by;

class RealDataset : public ::testing::TestWithParam<std::string> {
 protected:
  RealDataset() : home_("MOESAIC_HOME", MOESAIC_TEST_SOURCE_DIR) {}

  bool found() const { return !DatasetSource(GetParam()).base().find_folder().empty(); }

  test::ScopedEnv home_;
};

TEST_P(RealDataset, IsTheOfficialOne) {
  if (!found()) GTEST_SKIP() << GetParam() << " is not on this machine";
  test::expect_verified(GetParam());
}

TEST_P(RealDataset, MeanAndStdAreThoseOfTheTrainingImages) {
  if (!found()) GTEST_SKIP() << GetParam() << " is not on this machine";
  const auto train = open_dataset(GetParam(), "train");
  EXPECT_EQ(train->size(), 60000);
  EXPECT_EQ(open_dataset(GetParam(), "test")->size(), 10000);
  EXPECT_EQ(train->image_size(), 28 * 28);
  std::vector<int64_t> counts(256);
  std::vector<uint8_t> pixels(28 * 28);
  for (int64_t i = 0; i < train->size(); ++i) {
    train->image(i, pixels.data());
    for (const uint8_t pixel : pixels) ++counts[pixel];
  }
  double sum = 0, squares = 0;
  for (size_t value = 0; value < 256; ++value) {
    const double x = static_cast<double>(value) / 255;
    sum += x * static_cast<double>(counts[value]);
    squares += x * x * static_cast<double>(counts[value]);
  }
  const double mean = sum / (60000.0 * 28 * 28);
  const double std = std::sqrt(squares / (60000.0 * 28 * 28) - mean * mean);
  EXPECT_NEAR(train->info().mean.at(0), mean, 5.1e-5);
  EXPECT_NEAR(train->info().std.at(0), std, 5.1e-5);
}

INSTANTIATE_TEST_SUITE_P(Files, RealDataset, ::testing::Values("fashion-mnist", "mnist"),
                         [](const auto& info) {
                           return info.param == "mnist" ? std::string("Mnist") : "FashionMnist";
                         });

TEST(Footwear, IsThreeClassesOfFashionMnist) {
  const test::ScopedEnv home("MOESAIC_HOME", MOESAIC_TEST_SOURCE_DIR);
  if (DatasetSource("fashion-mnist-footwear").base().find_folder().empty()) {
    GTEST_SKIP() << "fashion-mnist is not on this machine";
  }
  const auto train = open_dataset("fashion-mnist-footwear", "train");
  EXPECT_EQ(train->size(), 18000);
  EXPECT_EQ(open_dataset("fashion-mnist-footwear", "test")->size(), 3000);
  EXPECT_THAT(train->info().classes, ElementsAre("Sandal", "Sneaker", "Ankle boot"));
  const auto whole = open_dataset("fashion-mnist", "train");
  const std::vector<int64_t> old_labels = {5, 7, 9};
  int64_t row = 0;
  for (int64_t i = 0; i < whole->size(); ++i) {
    const auto place = std::find(old_labels.begin(), old_labels.end(), whole->label(i));
    if (place == old_labels.end()) continue;
    ASSERT_EQ(train->label(row), place - old_labels.begin());
    if (row % 997 == 0) {
      EXPECT_EQ(image_of(*train, row), image_of(*whole, i));
    }
    ++row;
  }
  EXPECT_EQ(row, 18000);
}

/// The official images, or ones that have been through JPEG: mean and std hardly change.
TEST(Cifar10, HasTheDescribedMeanAndStd) {
  const test::ScopedEnv home("MOESAIC_HOME", MOESAIC_TEST_SOURCE_DIR);
  if (DatasetSource("cifar10").base().find_folder().empty()) GTEST_SKIP() << "not on this machine";
  const auto train = open_dataset("cifar10", "train+validation");
  EXPECT_EQ(train->size(), 50000);
  EXPECT_EQ(open_dataset("cifar10", "train")->size(), 49000);
  EXPECT_EQ(open_dataset("cifar10", "validation")->size(), 1000);
  EXPECT_EQ(open_dataset("cifar10", "test")->size(), 10000);
  std::vector<int64_t> of_class(10);
  for (const int64_t label : test::labels_of(*train)) ++of_class[static_cast<size_t>(label)];
  EXPECT_EQ(of_class, std::vector<int64_t>(10, 5000));
  std::vector<uint8_t> pixels(3072);
  std::vector<double> sum(3), squares(3);
  for (int64_t i = 0; i < train->size(); ++i) {
    train->image(i, pixels.data());
    for (size_t p = 0; p < 3072; ++p) {
      const double x = pixels[p] / 255.0;
      sum[p / 1024] += x;
      squares[p / 1024] += x * x;
    }
  }
  for (size_t c = 0; c < 3; ++c) {
    const double mean = sum[c] / (50000.0 * 1024);
    EXPECT_NEAR(train->info().mean[c], mean, 1e-3);
    EXPECT_NEAR(train->info().std[c], std::sqrt(squares[c] / (50000.0 * 1024) - mean * mean), 3e-3);
  }
}

TEST(ImageNetSample, EveryImageDecodesAtTheModelsSize) {
  const std::filesystem::path archive = std::filesystem::path(MOESAIC_TEST_SOURCE_DIR) /
                                        "../shared/data/imagenet-sample/imagenet-sample.tar";
  if (!std::filesystem::exists(archive)) GTEST_SKIP() << "not on this machine";
  const test::TempDir folder;
  unpack_archive(archive, folder.path());
  const std::string name = folder.path().string();
  const auto images = open_dataset(name, "test");
  EXPECT_EQ(images->size(), 97);
  EXPECT_EQ(images->info().classes.size(), 97u);
  said_by([&] {
    for (const FileVerification& file : DatasetSource(name).verify()) {
      if (file.name == "train") continue;  // the sample has none
      EXPECT_TRUE(file.ok()) << file.problem;
    }
  });
  const auto sized = preprocessed(images, PreprocessConfig{.size = 224, .central_crop = 0.875});
  int grey = 0;
  for (int64_t i = 0; i < sized->size(); ++i) {
    const test::Bytes bytes = image_of(*sized, i);
    const auto plane = static_cast<std::ptrdiff_t>(224 * 224);
    const bool equal = std::equal(bytes.begin(), bytes.begin() + plane, bytes.begin() + plane);
    if (equal) ++grey;
    EXPECT_NE(*std::min_element(bytes.begin(), bytes.end()),
              *std::max_element(bytes.begin(), bytes.end()));
  }
  EXPECT_EQ(grey, 1) << "the sample has one grey image";
}

TEST(SourceTree, EveryDescriptionIsSound) {
  const test::ScopedEnv home("MOESAIC_HOME", MOESAIC_TEST_SOURCE_DIR);
  for (const std::string& name : dataset_names()) {
    EXPECT_NO_THROW(DatasetSource(name).base()) << name;
    EXPECT_FALSE(load_dataset_spec(name).description.empty()) << name;
  }
}

}  // namespace
}  // namespace moesaic
