// SPDX-License-Identifier: Apache-2.0
// Which folders are splits and classes, and where links lead.
#include <fmt/format.h>

#include "data/data_fixture.h"
#include "data/image_folder_fixture.h"
#include "support/matchers.h"

namespace moesaic {
namespace {

using test::ImageFolder;
using test::jpeg_bytes;
using test::JpegKind;
using test::opening_says;
using test::usage_of;

TEST_F(ImageFolder, ALinkInACircleIsNoClass) {
  test::fs::create_directory_symlink(".", root() / "train" / "loop");
  test::fs::create_directory_symlink("..", root() / "train" / "up");
  test::fs::create_directory_symlink(root() / "train" / "dog", root() / "train" / "hound");
  EXPECT_THAT(
      opening_says(root()),
      HasSubstr("3 left out: 2 folders that are read already ('loop', 'up'); 1 link to what "
                "is read already ('hound -> " +
                (root() / "train/dog").string() + "')"));
  EXPECT_THAT(open()->info().classes, ElementsAre("cat", "dog"));
  EXPECT_EQ(open()->size(), 12);
}

TEST_F(ImageFolder, ALinkOutOfTheTreeIsReadOnce) {
  test::fs::rename(root() / "train" / "dog", folder_ / "dogs");
  for (const char* name : {"dog", "hound"}) {
    test::fs::create_directory_symlink(folder_ / "dogs", root() / "train" / name);
  }
  test::fs::create_symlink(folder_ / "dogs/0.jpg", root() / "val/dog/b.jpg");
  test::fs::rename(root() / "val/dog/a.jpeg", folder_ / "a.jpeg");
  test::fs::create_symlink(folder_ / "a.jpeg", root() / "val/dog/a.jpeg");
  EXPECT_THAT(opening_says(root()), HasSubstr("1 link to what is read already ('hound -> " +
                                              (root() / "train/dog").string() + "')"));
  EXPECT_THAT(open()->info().classes, ElementsAre("cat", "dog"));
  EXPECT_EQ(open()->size(), 12);
  EXPECT_THAT(opening_says(root(), "test"),
              HasSubstr("'dog/b.jpg -> " + (root() / "train/dog/0.jpg").string() + "'"));
  EXPECT_EQ(open("test")->size(), 1);
}

TEST_F(ImageFolder, LinksBetweenSplitsAreLeftOutOrNamed) {
  const std::string train = (root() / "train").string(), val = (root() / "val").string();
  test::fs::create_directory_symlink("../train/cat", root() / "val/cat");
  test::fs::create_symlink("../../val/dog/a.jpeg", root() / "train/dog/seen.jpeg");
  test::fs::create_symlink("0.jpg", root() / "train/dog/again.jpg");
  EXPECT_THAT(opening_says(root()),
              HasSubstr("in " + train +
                        " 2 left out: 2 links to what is read already "
                        "('dog/again.jpg -> " +
                        train + "/dog/0.jpg', 'dog/seen.jpeg -> " + val + "/dog/a.jpeg')"));
  EXPECT_EQ(open()->size(), 12);
  EXPECT_THAT(opening_says(root(), "test"),
              HasSubstr("in " + val + " 1 left out: 1 link to what is read already ('cat -> " +
                        train + "/cat')"));
  EXPECT_EQ(open("test")->size(), 1);
  test::fs::remove(root() / "val/dog/a.jpeg");
  EXPECT_THAT(usage_of([&] { open("test"); }),
              HasSubstr("; 1 left out: 1 link to what is read already"));
  // A whole split is read, since somebody who tries something out has no other.
  test::fs::remove_all(root() / "val");
  test::fs::create_directory_symlink("train", root() / "val");
  EXPECT_THAT(opening_says(root(), "test"),
              HasSubstr("2 folders of " + val +
                        " are read in another split too, so that results "
                        "of this split are of images seen before: 'cat -> " +
                        train + "/cat', 'dog -> " + train + "/dog'"));
  EXPECT_EQ(open("test")->size(), 12);
}

TEST_F(ImageFolder, WhatAProgramWroteIsNoClass) {
  const auto problem = [&](const std::vector<std::string>& files, std::string_view split) {
    const test::fs::path folder = root() / "train/mine";
    test::fs::remove_all(folder);
    for (const std::string& file : files) write_file(folder / file, std::string("x"));
    return usage_of([&] { open(split); });
  };
  const std::string train = (root() / "train").string();
  for (const std::string_view split : {"train", "test"}) {
    EXPECT_EQ(problem({"config.json", "metrics.jsonl", "figure.png"}, split),
              train + "/mine: a folder with a run, not a class of images; move it out of " + train);
    EXPECT_THAT(problem({"config.json", "checkpoints/step_1/state.json"}, split),
                HasSubstr("a folder with a run"));
    EXPECT_THAT(problem({"config.json", "MANIFEST.json"}, split),
                HasSubstr("a folder with a checkpoint"));
    EXPECT_THAT(problem({"mine-00000.tar", "mine.json"}, split), HasSubstr("a folder of shards"));
  }
  test::fs::remove_all(root() / "train/mine");
  write_file(root() / "train/cat/config.json", std::string("x"));
  write_file(root() / "train/cat/data.json", std::string("x"));  // As scrapers write.
  write_file(root() / "train/cat/all.tar", std::string("x"));
  EXPECT_EQ(open()->size(), 12) << "images beside which something else lies";
}

TEST_F(ImageFolder, WhichFolderIsWhichSplitIsSaid) {
  const auto make = [&](const char* name) { add_image(fmt::format("{}/dog/a.jpg", name)); };
  EXPECT_THAT(
      opening_says(root()),
      HasSubstr("trains on 'train', tests on 'val', validates on nothing, so that 'best' is "
                "chosen by the test images\n"));
  make("test");
  EXPECT_THAT(opening_says(root()), HasSubstr("tests on 'test', validates on 'val'\n"));
  make("validation");
  EXPECT_THAT(opening_says(root()),
              HasSubstr("tests on 'test', validates on 'validation'; left out: 'val'\n"));
  test::fs::remove_all(root() / "val");
  make("extra");
  add_image("stray.jpg");
  test::fs::rename(root() / "validation", root() / "valid");
  EXPECT_THAT(opening_says(root()),
              HasSubstr("tests on 'test', validates on 'valid'; left out: 'extra' and 1 image "
                        "beside the splits ('stray.jpg')\n"));
  EXPECT_THAT(dataset_splits(root().string()), ElementsAre("train", "validation", "test"));
  test::fs::remove_all(root() / "test");
  for (const char* name : {"valid", "validation"}) {
    if (!test::fs::exists(root() / name)) test::fs::rename(root() / "valid", root() / name);
    EXPECT_THAT(opening_says(root()),
                HasSubstr(fmt::format("tests on nothing, validates on '{}'; left out", name)));
    EXPECT_THAT(dataset_splits(root().string()), ElementsAre("train", "validation"));
    EXPECT_EQ(open("validation")->size(), 1);
  }
  EXPECT_THAT(usage_of([&] { open("test"); }), HasSubstr("validation"));
  test::fs::remove_all(root() / "validation");
  const char* tenth = "validates on the last 10 % of each class of the training images";
  EXPECT_THAT(opening_says(root()), AllOf(HasSubstr("tests on nothing, "), HasSubstr(tenth)));
  make("test");
  EXPECT_THAT(opening_says(root()), HasSubstr("tests on 'test', validates on nothing, so that"))
      << "six images of a class are too few to take one";
  for (int i = 6; i < 14; ++i) {
    add_image(fmt::format("train/dog/{}.jpg", i));
  }
  EXPECT_THAT(opening_says(root()), AllOf(HasSubstr("tests on 'test', "), HasSubstr(tenth)));
  EXPECT_THAT(dataset_splits(root().string()), ElementsAre("train", "validation", "test"));
  test::fs::remove_all(root() / "test");
  test::fs::rename(root() / "train", root() / "Train");
  EXPECT_THAT(
      usage_of([&] { open("test"); }),
      HasSubstr("folder 'train' not found in the dataset; the nearest is 'Train'; images lie in "
                "train/<class>, and in"));
}

TEST_F(ImageFolder, ASplitOfAnotherNameIsSuggested) {
  const auto make = [&](const char* name) { add_image(fmt::format("{}/dog/a.jpg", name)); };
  make("Test");
  make("labels");
  EXPECT_THAT(opening_says(root()),
              HasSubstr("; left out: 'Test', 'labels'; 'Test' is not read as a split: rename it to "
                        "'test' if it is one\n"));
  test::fs::rename(root() / "val", root() / "Val");
  EXPECT_THAT(
      usage_of([&] { open("test"); }),
      HasSubstr("folder 'val' not found in " + root().string() + "; the nearest is 'Val'; "));
}

TEST_F(ImageFolder, FoldersThatNoDescribedSplitIsAreNamed) {
  const auto described = [&](const test::fs::path& folder, const std::string& settings) {
    write_file(folder_ / "pets.json", R"({"name": "pets", "format": "image_folder", "paths": [")" +
                                          folder.string() + R"("], )" + settings + "}");
    return opening_says(folder_ / "pets.json");
  };
  EXPECT_THAT(described(root(), R"("splits": {"train": "train", "test": "val"})"),
              Not(HasSubstr("trains on")));
  test::fs::create_directories(root() / "labels");
  EXPECT_THAT(described(root(), R"("splits": {"train": "train", "test": "val"})"),
              HasSubstr("dataset 'pets': trains on 'train', tests on 'val', validates on nothing, "
                        "so that 'best' is chosen by the test images; left out: 'labels'\n"));
  test::fs::create_directories(root() / "sets/old");
  test::fs::rename(root() / "train", root() / "sets/train");
  EXPECT_THAT(described(root(), R"("splits": {"train": "sets/train", "test": "val"})"),
              HasSubstr("; left out: 'labels', 'sets/old'\n"));
  for (const char* file : {"Train/1.jpg", "Train/2.jpg", "bird/1.jpg", "bird/2.jpg"}) {
    write_file(folder_ / "flat" / file, jpeg_bytes(8, 8, JpegKind::grey, {9}));
  }
  EXPECT_THAT(described(folder_ / "flat", R"("validation": 0.5)"),
              HasSubstr("; 'Train' is read as a class, not as a split: rename it to 'train' if it "
                        "is one\n"));
}

TEST_F(ImageFolder, ValidationImagesNeverTestBesideADescriptionOfOthers) {
  test::fs::rename(root() / "val", root() / "valid");
  const auto splits = [&](const std::string& settings) {
    write_file(folder_ / "pets.json", R"({"name": "pets", "format": "image_folder", "paths": [")" +
                                          root().string() + R"("], )" + settings + "}");
    EXPECT_NO_THROW(open_dataset((folder_ / "pets.json").string(), "validation"));
    return dataset_splits((folder_ / "pets.json").string());
  };
  splits(R"("splits": {"train": "train"})");
  EXPECT_THAT(opening_says(folder_ / "pets.json"),
              HasSubstr("tests on nothing, validates on 'valid'"));
  for (const char* settings :
       {R"("splits": {"train": "train"})", R"("splits": {"train": "train"}, "validation": 0.2)",
        R"("splits": {"train": "train", "validation": "valid"})", R"("validation": 0.2)"}) {
    EXPECT_THAT(splits(settings), ElementsAre("train", "validation")) << settings;
  }
}

TEST_F(ImageFolder, ADerivedDatasetSaysItsOwnValidation) {
  const auto derived = [&](const char* validation) {
    write_file(folder_ / "mine.json", fmt::format(R"({{"name": "mine", "base": "{}/",
                                                  "validation": {}}})",
                                                  root().string(), validation));
    return (folder_ / "mine.json").string();
  };
  add_image("test/dog/a.jpg");
  EXPECT_THAT(usage_of([&] { open_dataset(derived("0.3"), "train"); }),
              HasSubstr("has a validation split already: leave 'validation' out"));
  test::fs::remove_all(root() / "val");
  EXPECT_THAT(opening_says(derived("0.3")), HasSubstr("validates on the last 30 % of each class"));
  EXPECT_THAT(opening_says(derived("0")), HasSubstr("validates on nothing"));
}

TEST_F(ImageFolder, AFolderThatIsNotThereMayBeAnother) {
  const auto refusal = [&](const test::fs::path& folder) {
    return usage_of([&] { open_dataset(folder.string() + "/", "train"); });
  };
  EXPECT_THAT(
      refusal(folder_.path()),
      HasSubstr("folder 'train' not found in the dataset, but in '" + root().string() + "/'; "));
  test::fs::rename(root() / "train", root() / "Train");
  EXPECT_THAT(refusal(root()),
              HasSubstr("not found in the dataset; the nearest is 'Train'; images lie in"));
}

TEST_F(ImageFolder, AMisspeltFolderOfADescriptionIsWrongUseAndGetsTheNearestOne) {
  const auto refusal = [&](const std::string& path, const char* train) {
    write_file(folder_ / "pets.json",
               fmt::format(R"({{"name": "pets", "format": "image_folder", "paths": ["{}"],
                   "splits": {{"train": "{}", "test": "val"}}}})",
                           path, train));
    return usage_of([&] { open_dataset((folder_ / "pets.json").string(), "train"); });
  };
  EXPECT_THAT(refusal(root().string(), "trian"),
              AllOf(HasSubstr("folder 'trian' not found in "),
                    HasSubstr("; the nearest is 'train'; put it or a link there")));
  const std::string misspelt = root().string() + "x";
  EXPECT_THAT(refusal(misspelt, "train"),
              HasSubstr("; the nearest is '" + root().string() + "'; put it or a link there"));
}

TEST_F(ImageFolder, WithoutImagesToValidateWithGivesATenthOfEachClass) {
  const auto check = [&](const test::fs::path& folder) {
    const std::string name = folder.string() + "/";
    EXPECT_THAT(dataset_splits(name), ElementsAre("train", "validation"));
    EXPECT_THAT(test::labels_of(*open_dataset(name, "train")),
                ElementsAre(0, 0, 0, 0, 0, 1, 1, 1, 1, 1));
    EXPECT_THAT(test::labels_of(*open_dataset(name, "validation")), ElementsAre(0, 1));
    EXPECT_EQ(open_dataset(name, "train+validation")->size(), 12);
  };
  test::fs::remove_all(root() / "val");
  check(root());
  test::fs::rename(root() / "train", folder_.path() / "flat");
  check(folder_.path() / "flat");
  // A folder that may be a split keeps the others from being classes.
  test::fs::create_directories(folder_.path() / "flat/Train");
  EXPECT_THAT(usage_of([&] { open_dataset((folder_.path() / "flat/").string(), "train"); }),
              HasSubstr("folder 'train' not found in the dataset; the nearest is 'Train'"));
}

}  // namespace
}  // namespace moesaic
