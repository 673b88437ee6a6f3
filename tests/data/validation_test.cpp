// SPDX-License-Identifier: Apache-2.0
#include "moesaic/data/views.h"

#include "data/data_fixture.h"
#include "data/jpeg_bytes.h"
#include "moesaic/data/source.h"
#include "support/matchers.h"

namespace moesaic {
namespace {

using test::failure_of;
using test::image_of;
using test::labels_of;
using test::said_by;
using test::usage_of;

/// As TensorFlow Datasets gives them for train[:98%] and train[:99%].
TEST(NumTrainingExamples, RoundsTheBoundaryToTheNearest) {
  EXPECT_EQ(num_training_examples(50000, 0.02), 49000);
  EXPECT_EQ(num_training_examples(1281167, 0.01), 1268355);
  EXPECT_EQ(num_training_examples(12, 0.02), 12);
  EXPECT_EQ(num_training_examples(30, 0.02), 29);
  EXPECT_EQ(num_training_examples(25, 0.02), 24) << "24.5 is rounded to even";
  EXPECT_EQ(num_training_examples(75, 0.02), 74) << "73.5 is rounded to even";
}

/// A dataset "tiny" of 12 training images, of which 3 are held out.
class HeldOut : public ::testing::Test {
 protected:
  HeldOut() {
    home_.write_files(home_.cache());
    const auto path = test::fs::path(home_.root()) / "datasets" / "tiny.json";
    const Bytes bytes = test::read_file(path);
    std::string text(bytes.begin(), bytes.end());
    home_.write_description("tiny", text.insert(1, R"("validation": 0.25, )"));
  }
  void describe(const std::string& name, const std::string& settings) const {
    home_.write_description(name,
                            R"({"name": ")" + name + R"(", "base": "tiny", )" + settings + "}");
  }

  test::TinyHome home_;
};

TEST_F(HeldOut, TrainIsTheFirstPartAndValidationTheRest) {
  const auto train = open_dataset("tiny", "train"), validation = open_dataset("tiny", "validation");
  const auto all = open_dataset("tiny", "train+validation");
  EXPECT_THAT(dataset_splits("tiny"), ElementsAre("train", "validation", "test"));
  ASSERT_EQ(train->size(), 9);
  ASSERT_EQ(validation->size(), 3);
  ASSERT_EQ(all->size(), 12);
  EXPECT_THAT(labels_of(*validation), ElementsAre(2, 1, 0));
  for (int64_t i = 0; i < 12; ++i) {
    EXPECT_EQ(image_of(*all, i), i < 9 ? image_of(*train, i) : image_of(*validation, i - 9));
  }
  EXPECT_EQ(open_dataset("tiny", "test")->size(), 5);
  EXPECT_EQ(train->info().split, "train");
  EXPECT_EQ(validation->info().split, "validation");
  EXPECT_THAT(failure_of([&] { validation->label(3); }), HasSubstr("image 3 of 3"));
}

TEST_F(HeldOut, WhatIsMadeOfADatasetTakesTheSameSplit) {
  describe("few", R"("keep_classes": ["cat", "fox"])");
  EXPECT_THAT(labels_of(*open_dataset("few", "validation")), ElementsAre(1, 0));
  describe("first", R"("num_first_images": {"train": 8, "validation": 2})");
  EXPECT_EQ(open_dataset("first", "train")->size(), 8);
  EXPECT_THAT(labels_of(*open_dataset("first", "validation")), ElementsAre(2, 1));
  EXPECT_THAT(usage_of([] { open_dataset("first", "train+validation"); }),
              HasSubstr("the train+validation split cannot be formed"));
  describe("first", R"("num_first_images": {"train": 10})");
  EXPECT_THAT(failure_of([] { open_dataset("first", "train"); }),
              HasSubstr("'num_first_images' is 10, more than the 9 images"));
  describe("turned", R"("rotate": {})");
  EXPECT_EQ(open_dataset("turned", "train")->size(), 18);
  EXPECT_EQ(open_dataset("turned", "validation")->size(), 6);
}

TEST_F(HeldOut, ADatasetCanTrainOnAllImagesOfItsBase) {
  describe("whole", R"("validation": 0)");
  EXPECT_THAT(dataset_splits("whole"), ElementsAre("train", "test"));
  EXPECT_EQ(open_dataset("whole", "train")->size(), 12);
  EXPECT_EQ(open_dataset("whole", "train")->info().name, "whole");
  EXPECT_EQ(open_dataset("whole", "train+validation")->size(), 12);
  EXPECT_THAT(usage_of([] { open_dataset("whole", "validation"); }),
              HasSubstr("'whole' has no validation split: its splits are train and test"));
  home_.write_description("half",
                          R"({"name": "half", "base": "whole", "num_first_images": {"train": 6}})");
  EXPECT_EQ(open_dataset("half", "train")->size(), 6);
  EXPECT_EQ(open_dataset("half", "train+validation")->size(), 6);
  EXPECT_THAT(dataset_splits("half"), ElementsAre("train", "test"));
  describe("third", R"("validation": 0.5)");
  EXPECT_EQ(open_dataset("third", "validation")->size(), 6);
}

TEST_F(HeldOut, AnEmptySplitIsAnError) {
  describe("none", R"("validation": 0.01)");
  EXPECT_EQ(open_dataset("none", "train")->size(), 12);
  EXPECT_THAT(failure_of([] { open_dataset("none", "validation"); }),
              HasSubstr("of 12 training examples a validation fraction of 0.01 leaves none"));
  home_.write_description("bad", R"({"name": "bad", "base": "tiny", "validation": 1})");
  EXPECT_THAT(usage_of([] { open_dataset("bad", "train"); }), HasSubstr("validation"));
}

/// 13 cats and 7 dogs to train, 1 of each to test.
class HeldOutImageFolder : public ::testing::Test {
 protected:
  HeldOutImageFolder() : data_env_("MOESAIC_DATA", std::nullopt) {
    fill("train", 13, 7);
    fill("val", 1, 1);
  }
  void fill(const std::string& split, int cats, int dogs) const {
    for (int i = 0; i < cats + dogs; ++i) {
      const std::string name = std::string(1, static_cast<char>('a' + i)) + ".jpg";
      write_file(root() / split / (i < cats ? "cat" : "dog") / name,
                 test::jpeg_bytes(8 + i, 8, test::JpegKind::rgb, {1, 2, 3}));
    }
  }
  test::fs::path root() const { return folder_.path() / "images"; }
  std::string describe(const std::string& settings) const {
    const test::fs::path path = folder_.path() / "pets.json";
    write_file(path, R"({"name": "pets", "format": "image_folder", "paths": [")" + root().string() +
                         R"("], "mean": [0, 0, 0], "std": [1, 1, 1], )" + settings + "}");
    return path.string();
  }
  /// The heights of a split's images: 8 for the first file of train, one more for each.
  static std::vector<int64_t> heights(const Dataset& dataset) {
    std::vector<int64_t> list;
    for (int64_t i = 0; i < dataset.size(); ++i) {
      dataset.decode(
          i,
          [&](int64_t h, int64_t w) {
            list.push_back(h);
            return Rectangle{0, 0, h, w};
          },
          {8}, bitmap());
    }
    return list;
  }
  static Bitmap& bitmap() {
    static Bitmap scratch;
    return scratch;
  }

  test::TempDir folder_;
  test::ScopedEnv data_env_;
};

TEST_F(HeldOutImageFolder, EveryClassGivesItsLastImages) {
  const std::string name = describe(R"("validation": 0.2)");
  EXPECT_THAT(heights(*open_dataset(name, "validation")), ElementsAre(18, 19, 20, 27));
  EXPECT_THAT(labels_of(*open_dataset(name, "validation")), ElementsAre(0, 0, 0, 1));
  EXPECT_EQ(open_dataset(name, "train")->size(), 16);
  EXPECT_EQ(open_dataset(name, "train+validation")->size(), 20);
  EXPECT_EQ(open_dataset(name, "test")->size(), 2);
  said_by([&] {
    EXPECT_EQ(DatasetSource(name).verify()[0].name, "train: 20 of 20") << "all files are verified";
  });
}

TEST_F(HeldOutImageFolder, AFolderTestMakesValTheValidationSplit) {
  const std::string folder = root().string();
  EXPECT_THAT(dataset_splits(folder), ElementsAre("train", "test"));
  EXPECT_EQ(open_dataset(folder, "test")->size(), 2);
  EXPECT_THAT(usage_of([&] { open_dataset(folder, "validation"); }),
              HasSubstr("its splits are train and test"));
  fill("test", 2, 1);
  EXPECT_THAT(dataset_splits(folder), ElementsAre("train", "validation", "test"));
  EXPECT_EQ(open_dataset(folder, "test")->size(), 3);
  EXPECT_EQ(open_dataset(folder, "validation")->size(), 2);
  EXPECT_THAT(usage_of([&] { open_dataset(folder, "train+validation"); }),
              HasSubstr("no train+validation split"));
}

TEST_F(HeldOutImageFolder, AFolderValidationIsTheValidationSplit) {
  fill("validation", 3, 2);
  EXPECT_EQ(open_dataset(root().string(), "validation")->size(), 5);
  EXPECT_EQ(open_dataset(root().string(), "test")->size(), 2);
  const std::string name = describe(R"("splits": {"validation": "val", "test": "validation"})");
  EXPECT_EQ(open_dataset(name, "validation")->size(), 2);
  EXPECT_EQ(open_dataset(name, "test")->size(), 5);
}

TEST(HeldOutSizes, AreThoseOfTheReference) {
  const auto size = [](const char* name, const char* split) {
    return DatasetSource(name).open_metadata(split)->size();
  };
  for (const char* name : {"cifar10", "cifar100"}) {
    EXPECT_EQ(size(name, "train"), 49000);
    EXPECT_EQ(size(name, "validation"), 1000);
    EXPECT_EQ(size(name, "train+validation"), 50000);
    EXPECT_EQ(size(name, "test"), 10000);
  }
  EXPECT_EQ(size("imagenet", "train"), 1268355);
  EXPECT_EQ(size("imagenet", "validation"), 12812);
  EXPECT_EQ(size("cifar10-whole", "train"), 50000);
  EXPECT_EQ(size("cifar10-rotate", "train"), 100000);
  EXPECT_EQ(size("cifar10-small", "train"), 10000);
  EXPECT_EQ(size("cifar10-rotate-small", "train"), 20000);
  EXPECT_EQ(size("cifar10-turned", "validation"), 2000);
  EXPECT_THAT(dataset_splits("celeba"), ElementsAre("train", "validation", "test"));
  for (const char* name : {"fashion-mnist", "mnist", "clusters-setting1", "cifar10-rotate",
                           "cifar10-small", "cifar10-rotate-small"}) {
    EXPECT_THAT(dataset_splits(name), ElementsAre("train", "test")) << name;
  }
}

}  // namespace
}  // namespace moesaic
