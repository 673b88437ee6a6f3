// SPDX-License-Identifier: Apache-2.0
#include "moesaic/data/dataset.h"
#include "moesaic/data/views.h"

#include <fmt/format.h>

#include "data/data_fixture.h"
#include "moesaic/data/source.h"
#include "support/matchers.h"
#include "support/warnings.h"

namespace moesaic {
namespace {

using test::failure_of;
using test::gzip_bytes;
using test::idx_bytes;
using test::image_of;
using test::labels_of;
using test::TinyHome;

std::vector<uint8_t> slice(const std::vector<uint8_t>& values, int64_t index, int64_t size) {
  return {values.begin() + index * size, values.begin() + (index + 1) * size};
}

class TinyDataset : public ::testing::Test {
 protected:
  static std::string failure(const std::string& name = "tiny", const std::string& split = "train") {
    return failure_of([&] { open_dataset(name, split); });
  }
  static std::string misuse(const std::string& name, const std::string& split = "train") {
    return test::usage_of([&] { open_dataset(name, split); });
  }
  /// Writes datasets/few.json with these settings beside its name.
  void describe_few(const std::string& settings) const {
    home_.write_description("few", R"({"name": "few", )" + settings + "}");
  }
  /// The description "base" of CIFAR's files, which are not there.
  void describe_absent(int num_train, int num_test) const {
    home_.write_description("base",
                            fmt::format(R"({{"name": "base", "description": "d", "format": "cifar",
      "classes": ["a", "b", "c"], "num_images": {{"train": {}, "test": {}}}, "mean": [0, 0, 0],
      "std": [1, 1, 1], "files": {{"train_1": {{"name": "x", "size": 1}},
      "test_1": {{"name": "y", "size": 1}}}}}})",
                                        num_train, num_test));
  }

  TinyHome home_;
};

TEST_F(TinyDataset, OpensBothSplits) {
  home_.write_files(home_.cache());
  const auto train = open_dataset("tiny", "train");
  const auto test = open_dataset("tiny", "test");
  EXPECT_EQ(train->size(), 12);
  EXPECT_EQ(test->size(), 5);
  EXPECT_THAT(labels_of(*test), ElementsAre(3, 1, 0, 2, 2));
  const DatasetInfo& info = train->info();
  EXPECT_EQ(info.name, "tiny");
  EXPECT_EQ(info.split, "train");
  EXPECT_EQ(test->info().split, "test");
  EXPECT_EQ(info.description, "a test");
  EXPECT_THAT(info.classes, ElementsAre("cat", "dog", "fox", "hen"));
  EXPECT_THAT((std::vector{info.channels, info.height, info.width}), ElementsAre(1, 4, 5));
  EXPECT_THAT(info.mean, ElementsAre(0.25));
  EXPECT_THAT(info.std, ElementsAre(0.5));
  EXPECT_EQ(image_of(*train, 0), slice(TinyHome::pixels(12, 3), 0, 20));
  EXPECT_EQ(image_of(*train, 11), slice(TinyHome::pixels(12, 3), 11, 20));
  EXPECT_EQ(image_of(*test, 4), slice(TinyHome::pixels(5, 91), 4, 20));
}

TEST_F(TinyDataset, PackedFilesHoldTheSame) {
  home_.write_files(home_.cache());
  const auto plain = open_dataset("tiny", "train");
  std::filesystem::remove_all(home_.cache());
  home_.write_files(home_.cache(), true);
  const auto packed = open_dataset("tiny", "train");
  ASSERT_EQ(packed->size(), plain->size());
  EXPECT_EQ(labels_of(*packed), labels_of(*plain));
  for (int64_t i = 0; i < plain->size(); ++i) EXPECT_EQ(image_of(*packed, i), image_of(*plain, i));
}

TEST_F(TinyDataset, ASplitNeedsOnlyItsOwnFiles) {
  home_.write_files(home_.cache());
  std::filesystem::remove(home_.cache() / "train-images");
  EXPECT_EQ(open_dataset("tiny", "test")->size(), 5);
  EXPECT_THAT(failure(), HasSubstr("files not found"));
  EXPECT_TRUE(load_dataset_spec("tiny").find_folder().empty());
}

TEST_F(TinyDataset, MissingFilesTellHowToGetThem) {
  EXPECT_THAT(failure(),
              AllOf(HasSubstr("'tiny'"), HasSubstr(home_.cache().string()), HasSubstr("elsewhere"),
                    HasSubstr("moesaic data fetch tiny"), HasSubstr("dataset-tiny")));
}

TEST_F(TinyDataset, UnknownNamesGetTheNearest) {
  EXPECT_THAT(misuse("tinny"),
              AllOf(HasSubstr("unknown dataset 'tinny'"), HasSubstr("did you mean 'tiny'?")));
  for (const char* path : {"../datasets/tiny", "./tiny", "tiny/", "none/tinny/"}) {
    EXPECT_THAT(misuse(path), AllOf(HasSubstr("no such folder"), HasSubstr("did you mean 'tiny'?")))
        << path;
  }
  EXPECT_THAT(misuse("tiny", "trian"),
              AllOf(HasSubstr("unknown split 'trian'"), HasSubstr("did you mean 'train'?")));
}

TEST_F(TinyDataset, CountsMustAgree) {
  home_.files["train-labels"] = idx_bytes({3}, {0, 1, 2});
  home_.describe();
  home_.write_files(home_.cache());
  EXPECT_THAT(failure(), AllOf(HasSubstr("train-images holds 12 images"),
                               HasSubstr("train-labels holds 3 labels")));
}

TEST_F(TinyDataset, RanksMustBeRight) {
  home_.files["train-images"] = idx_bytes({12, 20}, TinyHome::pixels(12, 0));
  home_.files["test-labels"] = idx_bytes({5, 1}, {0, 0, 0, 0, 0});
  home_.describe();
  home_.write_files(home_.cache());
  EXPECT_THAT(failure(), AllOf(HasSubstr("train-images"), HasSubstr("found [12, 20]")));
  EXPECT_THAT(failure("tiny", "test"), AllOf(HasSubstr("test-labels"), HasSubstr("found [5, 1]")));
}

TEST_F(TinyDataset, ImagesNeedPixels) {
  home_.files["test-images"] = idx_bytes({5, 0, 5}, {});
  home_.describe();
  home_.write_files(home_.cache());
  EXPECT_THAT(failure("tiny", "test"),
              AllOf(HasSubstr("test-images"), HasSubstr("without pixels"), HasSubstr("[5, 0, 5]")));
}

TEST_F(TinyDataset, LabelsNeedAClass) {
  home_.files["test-labels"] = idx_bytes({5}, {3, 1, 4, 2, 2});
  home_.describe();
  home_.write_files(home_.cache());
  EXPECT_THAT(
      failure("tiny", "test"),
      AllOf(HasSubstr("test-labels"), HasSubstr("label 4 of image 2"), HasSubstr("there are 4")));
}

TEST_F(TinyDataset, AChangedPixelIsNoticed) {
  home_.files["train-images"].back() ^= 1;
  home_.write_files(home_.cache());
  EXPECT_THAT(failure(), AllOf(HasSubstr("train-images"), HasSubstr("SHA-256")));
}

TEST_F(TinyDataset, DamagedFilesAreNamed) {
  home_.write_files(home_.cache());
  const test::Bytes whole = home_.files["test-images"];
  write_file(home_.cache() / "test-images", std::span(whole).first(whole.size() - 1));
  EXPECT_THAT(failure("tiny", "test"), HasSubstr("test-images"));
  test::Bytes longer = whole;
  longer.push_back(0);
  write_file(home_.cache() / "test-images", longer);
  EXPECT_THAT(failure("tiny", "test"), HasSubstr("test-images"));
  test::Bytes packed = gzip_bytes(whole);
  packed[packed.size() / 2] ^= 1;
  write_file(home_.cache() / "test-images.gz", packed);
  EXPECT_THAT(failure("tiny", "test"), HasSubstr("test-images.gz"));
}

TEST_F(TinyDataset, IndicesAreChecked) {
  home_.write_files(home_.cache());
  const auto test = open_dataset("tiny", "test");
  std::vector<uint8_t> pixels(20);
  EXPECT_THAT(failure_of([&] { test->label(5); }), HasSubstr("image 5 of 5"));
  EXPECT_THAT(failure_of([&] { test->image(-1, pixels.data()); }), HasSubstr("image -1 of 5"));
  const auto subset = make_class_subset(test, {"fox"}, "foxes");
  EXPECT_THAT(failure_of([&] { subset->image(2, pixels.data()); }), HasSubstr("image 2 of 2"));
}

TEST_F(TinyDataset, SubsetRenumbersInTheOrderOfKeepClasses) {
  home_.write_files(home_.cache());
  describe_few(R"("base": "tiny", "description": "two of four",
                                     "keep_classes": ["hen", "dog"])");
  const auto train = open_dataset("few", "train");
  const auto whole = open_dataset("tiny", "train");
  EXPECT_THAT(labels_of(*train), ElementsAre(1, 0, 1, 0, 0, 1));
  const std::vector<int64_t> origin = {1, 3, 5, 7, 8, 10};
  for (size_t i = 0; i < origin.size(); ++i) {
    EXPECT_EQ(image_of(*train, static_cast<int64_t>(i)), image_of(*whole, origin[i]));
  }
  EXPECT_EQ(train->info().name, "few");
  EXPECT_EQ(train->info().description, "two of four");
  EXPECT_THAT(train->info().classes, ElementsAre("hen", "dog"));
  EXPECT_THAT(train->info().mean, ElementsAre(0.25));
  EXPECT_EQ(train->image_size(), 20);

  home_.write_description("one", R"({"name": "one", "base": "few", "keep_classes": ["dog"]})");
  EXPECT_THAT(labels_of(*open_dataset("one", "test")), ElementsAre(0));
}

TEST_F(TinyDataset, TheFirstImagesOfASplit) {
  home_.write_files(home_.cache());
  describe_few(R"("base": "tiny", "description": "d", "num_first_images": {"train": 5})");
  const auto train = open_dataset("few", "train");
  const auto whole = open_dataset("tiny", "train");
  EXPECT_THAT(labels_of(*train), ElementsAre(0, 1, 2, 3, 0));
  EXPECT_EQ(image_of(*train, 4), image_of(*whole, 4));
  EXPECT_EQ(train->info().name, "few");
  EXPECT_EQ(open_dataset("few", "test")->size(), 5);  // of the other split, all
  std::vector<uint8_t> pixels(20);
  EXPECT_THAT(failure_of([&] { train->image(5, pixels.data()); }), HasSubstr("image 5 of 5"));
  for (const std::string& name : dataset_names()) EXPECT_EQ(DatasetSource(name).num_classes(), 4);
  describe_few(R"("base": "tiny", "description": "d", "num_first_images": {"train": 13})");
  EXPECT_THAT(failure("few"),
              HasSubstr("'num_first_images' is 13, more than the 12 images of 'tiny'"));
  home_.write_description("former", R"({"name": "former", "base": "tiny", "first": {"train": 5}})");
  const testing::Warnings warnings;
  EXPECT_EQ(open_dataset("former", "train")->size(), 5);
  EXPECT_THAT(warnings.texts(),
              ElementsAre(AllOf(HasSubstr("first' is called"), HasSubstr("num_first_images'"))));
}

TEST_F(TinyDataset, WhatIsMadeOfAbsentFilesIsPlannedByTheirDescription) {
  describe_absent(50, 7);
  home_.write_description("turned", R"({"name": "turned", "base": "base", "rotate": {}})");
  home_.write_description(
      "part", R"({"name": "part", "base": "turned", "num_first_images": {"train": 30}})");
  PlannedDatasets planned;
  ::testing::internal::CaptureStderr();
  const auto train = planned("part", "train"), test = planned("part", "test");
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("the plan uses the description"));
  EXPECT_EQ(train->size(), 30);
  EXPECT_EQ(test->size(), 14);
  EXPECT_EQ(train->image_size(), 3072);
  EXPECT_THAT(train->info().classes, ElementsAre("original", "rotated"));
  EXPECT_THAT(failure("part"), HasSubstr("data fetch base"));
}

TEST_F(TinyDataset, SomeClassesOfAbsentFilesArePlannedAsIfAllHadAsManyImages) {
  describe_absent(60, 9);
  home_.write_description("some",
                          R"({"name": "some", "base": "base", "keep_classes": ["c", "a"]})");
  PlannedDatasets planned;
  ::testing::internal::CaptureStderr();
  const auto train = planned("some", "train"), test = planned("some", "test");
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              HasSubstr("'some': its files are not here; the plan uses the description, as if "
                        "all classes had as many images\n"));
  EXPECT_EQ(train->size(), 40);
  EXPECT_EQ(test->size(), 6);
  EXPECT_THAT(train->info().classes, ElementsAre("c", "a"));
  EXPECT_THAT(failure("some"), HasSubstr("data fetch base"));
}

TEST_F(TinyDataset, SubsetRejectsWrongClasses) {
  home_.write_files(home_.cache());
  describe_few(R"("base": "tiny", "keep_classes": ["dgo"])");
  EXPECT_THAT(misuse("few"), AllOf(HasSubstr("no class 'dgo'"), HasSubstr("did you mean 'dog'?")));
  describe_few(R"("base": "tiny", "keep_classes": ["dog", "dog"])");
  EXPECT_THAT(misuse("few"), HasSubstr("'dog' twice"));
  describe_few(R"("base": "tini", "keep_classes": ["dog"])");
  EXPECT_THAT(misuse("few"), HasSubstr("unknown dataset 'tini'"));
  describe_few(R"("base": "few", "keep_classes": ["dog"])");
  EXPECT_THAT(misuse("few"), HasSubstr("circular"));
}

TEST_F(TinyDataset, SubsetOfNoImagesIsRefused) {
  home_.write_files(home_.cache());
  home_.write_description("two",
                          R"({"name": "two", "base": "tiny", "num_first_images": {"train": 2}})");
  home_.write_description("none", R"({"name": "none", "base": "two", "keep_classes": ["hen"]})");
  EXPECT_THAT(failure("none"),
              HasSubstr("none of the 2 images of 'two' has a class of 'keep_classes' (hen)"));
}

TEST(MemoryDataset, SizesMustAgree) {
  DatasetInfo info{.name = "memory", .classes = {"a", "b"}, .channels = 2, .height = 1, .width = 3};
  const auto make = [&](size_t pixels, std::vector<uint8_t> labels) {
    return make_memory_dataset(info, std::vector<uint8_t>(pixels), std::move(labels));
  };
  EXPECT_EQ(make(12, {0, 1})->size(), 2);
  EXPECT_EQ(make(0, {})->size(), 0);
  EXPECT_THAT(failure_of([&] { make(13, {0, 1}); }), HasSubstr("13 bytes"));
  EXPECT_THAT(failure_of([&] { make(12, {0, 2}); }), HasSubstr("label 2"));
  info.height = INT64_MAX;
  EXPECT_THAT(failure_of([&] { make(12, {0, 1}); }), HasSubstr("12 bytes"));
  info.height = -1;
  EXPECT_THAT(failure_of([&] { make(12, {0, 1}); }), HasSubstr("pixel"));
}

}  // namespace
}  // namespace moesaic
