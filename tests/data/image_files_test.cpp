// SPDX-License-Identifier: Apache-2.0

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>

#include "data/data_fixture.h"
#include "data/image_files.h"
#include "data/image_folder_fixture.h"
#include "data/jpeg_bytes.h"
#include "data/png_bytes.h"
#include "moesaic/data/dataset.h"
#include "moesaic/data/image_walk.h"
#include "moesaic/data/loader.h"
#include "moesaic/data/preprocess.h"
#include "moesaic/data/source.h"
#include "support/matchers.h"

namespace moesaic {
namespace {

using test::failure_of;
using test::ImageFolder;
using test::jpeg_bytes;
using test::JpegKind;
using test::opening_says;
using test::said_by;
using test::usage_of;

TEST_F(ImageFolder, ClassesAreTheFoldersOfTheTrainingImages) {
  const auto train = open();
  EXPECT_THAT(train->info().classes, ElementsAre("cat", "dog"));
  EXPECT_EQ(train->info().height, 0);
  EXPECT_THAT(test::labels_of(*train), ElementsAre(0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1));
  const auto val = open("test");
  EXPECT_THAT(val->info().classes, ElementsAre("cat", "dog"));
  EXPECT_THAT(test::labels_of(*val), ElementsAre(1));
  EXPECT_THAT(usage_of([&] { preprocessed(train, PreprocessConfig{}); }),
              HasSubstr("set preprocess.size"));
  EXPECT_THAT(usage_of([&] { Loader loader(train, {}); }), HasSubstr("set preprocess.size"));
}

TEST_F(ImageFolder, ImagesAreReadSmallerWhereThePartAllows) {
  const auto train = open();
  Bitmap bitmap;
  const auto whole = [](int64_t h, int64_t w) { return Rectangle{0, 0, h, w}; };
  EXPECT_EQ(train->decode(0, whole, {40}, bitmap).height, 40);
  EXPECT_EQ(train->decode(0, whole, {20}, bitmap).height, 20);
  EXPECT_EQ(bitmap.width, 31);
  EXPECT_EQ(train->decode(0, whole, {6}, bitmap).height, 10);
  const auto part = [](int64_t, int64_t) { return Rectangle{5, 9, 20, 20}; };
  const Rectangle found = train->decode(0, part, {10}, bitmap);
  EXPECT_EQ(found.top, 0);
  EXPECT_EQ(found.left, 4);
  EXPECT_EQ(found.height, 11);
  EXPECT_EQ(bitmap.height, 11);
  const Bytes pixels = test::image_of(*at_size(16), 3);
  ASSERT_EQ(pixels.size(), 768u);
  for (size_t i = 0; i < 256; ++i) {
    EXPECT_NEAR(pixels[i], 200, 3);
    EXPECT_NEAR(pixels[512 + i], 50, 3);
  }
}

LoaderOptions everything(int64_t threads) {
  return {
      .batch_size = 5,
      .seed = 3,
      .shuffle = true,
      .num_threads = threads,
      .augment = {
          .flip = true, .crop = CropConfig{}, .rand_augment = RandAugmentConfig{}, .mixup = 0.2}};
}

void expect_equal(const Batch& a, const Batch& b) {
  EXPECT_TRUE(at::equal(a.inputs, b.inputs)) << a.epoch << ", " << a.position;
  EXPECT_TRUE(at::equal(a.labels, b.labels));
  EXPECT_TRUE(at::equal(a.soft_labels, b.soft_labels));
}

TEST_F(ImageFolder, TheSameBitsForAnyThreadsAndAfterASeek) {
  const auto data = at_size(24);
  Loader first(data, everything(0));
  std::vector<Batch> batches;
  for (int i = 0; i < 7; ++i) batches.push_back(first.next());
  EXPECT_EQ(batches[0].inputs.sizes(), at::IntArrayRef({5, 3, 24, 24}));
  EXPECT_EQ(batches[0].soft_labels.sizes(), at::IntArrayRef({5, 2}));
  EXPECT_FALSE(at::equal(batches[0].inputs, batches[3].inputs)) << "epochs differ";
  for (const int64_t threads : {1, 2, 4}) {
    Loader other(data, everything(threads));
    for (const Batch& batch : batches) expect_equal(other.next(), batch);
    other.seek(1, 1);
    expect_equal(other.next(), batches[4]);
  }
}

TEST_F(ImageFolder, ADamagedImageIsNamedAndReplaced) {
  const test::fs::path damaged = root() / "train" / "cat" / "5.JPEG";
  const Bytes whole = test::read_file(damaged);
  LoaderOptions options{.batch_size = 12};
  for (const Bytes& bytes : {Bytes{}, Bytes(whole.begin(), whole.begin() + 200), Bytes(300, 'x')}) {
    write_file(damaged, bytes);
    for (const int64_t threads : {0, 2}) {
      options.num_threads = threads;
      Loader loader(at_size(8), options);
      Batch batch;
      const std::string said = said_by([&] {
        batch = loader.next();
        loader.seek(0, 0);
        loader.next();
      });
      EXPECT_THAT(said, HasSubstr(damaged.string()));
      EXPECT_EQ(said.find(damaged.string()), said.rfind(damaged.string())) << "once is enough";
      EXPECT_TRUE(at::equal(batch.inputs[5], batch.inputs[6]));
      EXPECT_EQ(batch.labels[5].item<int64_t>(), 1) << "with the label of the one that is shown";
    }
  }
}

TEST_F(ImageFolder, AFileThatCannotBeReadIsTriedAgainAndIsNotDamaged) {
  const test::fs::path file = root() / "train" / "dog" / "3.jpg", away = root() / "away";
  const Bytes whole = test::read_file(file);
  FileList list{root() / "train"};
  const int32_t folder = list.add_folder("dog");
  for (const char* name : {"3.jpg", "4.jpg"}) list.add(folder, name, 1);
  int pauses = 0;
  const auto images = std::make_shared<ImageFiles>(open()->info(), list, std::vector<uint8_t>(),
                                                   [&](std::chrono::milliseconds) {
                                                     if (++pauses == 2)
                                                       test::fs::rename(away, file);
                                                   });
  const std::string said = said_by([&] {
    test::fs::rename(file, away);
    EXPECT_EQ(images->encoded(0)->bytes, std::string(whole.begin(), whole.end()));
    EXPECT_EQ(pauses, 2);
    test::fs::remove(file);
    const auto sized = preprocessed(images, PreprocessConfig{.size = 8});
    EXPECT_THROW(Loader(sized, {.batch_size = 2}).next(), IoError);
    EXPECT_EQ(pauses, 5);
  });
  EXPECT_THAT(said, AllOf(HasSubstr(file.string() + ": cannot open: No such file or directory"),
                          Not(HasSubstr("replaces it"))));
}

TEST_F(ImageFolder, ManyDamagedImagesAreAnError) {
  for (const auto& entry : test::fs::recursive_directory_iterator(root() / "train")) {
    if (entry.is_regular_file()) write_file(entry.path(), std::string("no image"));
  }
  Loader loader(at_size(8), {.batch_size = 4});
  said_by([&] {
    EXPECT_THAT(failure_of([&] { loader.next(); }), HasSubstr("of 12 images cannot be read"));
  });
}

TEST_F(ImageFolder, NothingButDamagedImagesEndsForAnyThreads) {
  for (const char* animal : {"cat", "dog"}) {
    std::vector<test::fs::path> files;
    for (const auto& file : test::fs::directory_iterator(root() / "train" / animal)) {
      files.push_back(file.path());
    }
    for (size_t i = 2; i < files.size(); ++i) test::fs::remove(files[i]);
    for (size_t i = 0; i < 2; ++i) write_file(files[i], std::string("no image"));
  }
  LoaderOptions options{.batch_size = 2, .shuffle = true};
  for (const int64_t threads : {0, 1, 2}) {
    options.num_threads = threads;
    Loader loader(at_size(8), options);
    said_by([&] {
      for (int call = 0; call < 2; ++call) {
        EXPECT_THAT(failure_of([&] { loader.next(); }), HasSubstr("of 4 images cannot be read"));
      }
    });
  }
}

TEST_F(ImageFolder, VerifyDecodesEveryImage) {
  write_file(root() / "train" / "dog" / "3.jpg", std::string("no image"));
  write_file(root() / "train" / "dog" / "4.jpg", Bytes{0x89, 'P', 'N', 'G', 13, 10});
  std::vector<FileVerification> files;
  said_by([&] { files = DatasetSource(root().string()).verify(); });
  ASSERT_EQ(files.size(), 4u);
  EXPECT_THAT(files[0].problem, AllOf(HasSubstr("3.jpg"), HasSubstr("neither a JPEG nor a PNG")));
  EXPECT_THAT(files[1].problem, AllOf(HasSubstr("4.jpg"), HasSubstr("not a PNG")));
  EXPECT_EQ(files[2].name, "train: 10 of 12");
  EXPECT_TRUE(files[3].ok());
}

TEST_F(ImageFolder, OddFoldersAreLivedWithOrNamed) {
  test::fs::create_directory_symlink(root() / "train", root() / "train" / "cat" / "loop");
  test::fs::create_symlink("self.jpg", root() / "train" / "cat" / "self.jpg");
  write_file(root() / "train" / "cat" / "notes.txt", std::string("x"));
  write_file(root() / "train" / "cat" / ".hidden.jpg", std::string("x"));
  EXPECT_THAT(said_by([&] { EXPECT_EQ(open()->size(), 12); }),
              HasSubstr("4 left out: 1 file not called .jpg, .jpeg, .jpe, .jfif, .png, .webp "
                        "('cat/notes.txt'); 1 link to nothing ('cat/self.jpg'); 1 hidden "
                        "('cat/.hidden.jpg'); 1 folder that is read already ('cat/loop')"));
  test::fs::create_directories(root() / "val" / "dgo");
  EXPECT_THAT(failure_of([&] { open("test"); }),
              AllOf(HasSubstr("val/dgo"), HasSubstr("did you mean 'dog'?")));
  test::fs::remove_all(root() / "train");
  EXPECT_THAT(usage_of([&] { open(); }), HasSubstr("folder 'train' not found"));
  test::fs::create_directories(root() / "train");
  EXPECT_THAT(usage_of([&] { open(); }), HasSubstr("no folder of a class"));
  test::fs::create_directories(root() / "train" / "cat");
  EXPECT_THAT(usage_of([&] { open(); }), HasSubstr("no images (.jpg, "));
  write_file(root() / "train" / "cat" / "1" / "a.jpg", std::string("x"));
  EXPECT_THAT(usage_of([&] { open(); }),
              HasSubstr("in its folders; 1 left out: 1 folder inside a class ('cat/1')"));
  EXPECT_THAT(usage_of([] { open_dataset("./nowhere", "train"); }), HasSubstr("no such folder"));
}

TEST_F(ImageFolder, EmptyClassesAndFilesBesideThemAreNamed) {
  EXPECT_THAT(opening_says(root()), Not(HasSubstr("warning")));
  EXPECT_THAT(opening_says(root(), "test"),
              HasSubstr("1 class in " + (root() / "val").string() + " without images: 'cat'"));
  test::fs::create_directories(root() / "train" / "eel");
  test::fs::create_directories(root() / "train" / "ant");
  add_image("train/stray.jpg");
  EXPECT_THAT(opening_says(root()),
              AllOf(HasSubstr("2 classes in " + (root() / "train").string() +
                              " without images: 'ant', 'eel'"),
                    HasSubstr("in " + (root() / "train").string() +
                              " 1 left out: 1 image beside the folders of the classes "
                              "('stray.jpg')")));
  EXPECT_EQ(opening_says(root()), "") << "it is said once";
}

TEST_F(ImageFolder, ClassesThatLookAlikeAreSaid) {
  const std::string composed = "caf\u00e9", decomposed = "cafe\u0301";
  for (const std::string& name : {composed, decomposed}) {
    add_image(fmt::format("train/{}/a.jpg", name));
  }
  EXPECT_THAT(opening_says(root()), HasSubstr("': two classes are called '" + composed +
                                              "', cafe\\u{301} and caf\\u{e9}\n"));
}

TEST_F(ImageFolder, ThreePairsThatLookAlikeAreNamedAndTheOthersCounted) {
  for (const char* name : {"a1", "a2", "a3", "a4", "a5"}) {
    for (const char* space : {"", " "}) {
      add_image(fmt::format("train/{}{}/a.jpg", name, space));
    }
  }
  EXPECT_THAT(opening_says(root()),
              HasSubstr("': two classes are called 'a1 ', a1 and a1\\u{20}; and two 'a2 ', a2 and "
                        "a2\\u{20}; and two 'a3 ', a3 and a3\\u{20}; and 2 more\n"));
}

TEST_F(ImageFolder, ClassesThatDifferInSpacesAroundThemAreSaid) {
  for (const char* name : {"ant", "ant "}) {
    add_image(fmt::format("train/{}/a.jpg", name));
  }
  EXPECT_THAT(opening_says(root()),
              HasSubstr("': two classes are called 'ant ', ant and ant\\u{20}\n"));
}

TEST_F(ImageFolder, WhatASystemMakesIsNoClass) {
  for (const char* name : {"__MACOSX", "@eaDir", ".ipynb_checkpoints"}) {
    add_image(fmt::format("train/{}/a.jpg", name));
  }
  EXPECT_THAT(opening_says(root()),
              HasSubstr("3 left out: 2 folders that a system made ('@eaDir', '__MACOSX'); 1 hidden "
                        "('.ipynb_checkpoints')"));
  EXPECT_THAT(open()->info().classes, ElementsAre("cat", "dog"));
}

TEST_F(ImageFolder, OfClassesAloneGivesPartOfEachToValidateWith) {
  test::fs::rename(root() / "train", folder_.path() / "flat");
  const std::string description = (folder_.path() / "flat/flat.json").string();
  write_file(description, std::string(R"({"name": "flat", "format": "image_folder",
                                          "paths": ["./"], "validation": 0.5})"));
  for (const std::string& name : {description, (folder_.path() / "flat/").string()}) {
    EXPECT_THAT(dataset_splits(name), ElementsAre("train", "validation"));
    EXPECT_THAT(test::labels_of(*open_dataset(name, "train")), ElementsAre(0, 0, 0, 1, 1, 1));
    EXPECT_THAT(test::labels_of(*open_dataset(name, "validation")), ElementsAre(0, 0, 0, 1, 1, 1));
    EXPECT_THAT(open_dataset(name, "train")->info().mean, ElementsAre(0.485, 0.456, 0.406));
    test::expect_verified(name);
  }
  // A folder train and nothing to test with.
  test::fs::remove_all(root() / "val");
  write_file(folder_.path() / "half.json", std::string(R"({"name": "half", "paths": ["images"],
                                      "format": "image_folder", "validation": 0.5})"));
  test::fs::rename(folder_.path() / "flat", root() / "train");
  EXPECT_THAT(dataset_splits((folder_.path() / "half.json").string()),
              ElementsAre("train", "validation"));
}

TEST_F(ImageFolder, AClassOfUnreadableFilesIsNamed) {
  for (int i = 6; i < 300; ++i) {
    add_image(fmt::format("train/dog/{}.jpg", i));
  }
  for (const char* name : {"a.jpg", "b.png"}) {
    write_file(root() / "train" / "eel" / name, std::string("no image"));
  }
  const LoaderOptions options{.batch_size = open()->size()};
  EXPECT_THAT(said_by([&] { Loader(at_size(8), options).next(); }),
              HasSubstr("no image of class 'eel' can be read"));
  const std::vector<FileVerification> files = DatasetSource(root().string()).verify();
  const auto lost = std::find_if(files.begin(), files.end(),
                                 [](const FileVerification& file) { return file.name == "eel"; });
  ASSERT_NE(lost, files.end());
  EXPECT_EQ(lost->problem, "train: none of the 2 images of class 'eel' can be read");
}

TEST_F(ImageFolder, MoreThanOnePerCentDamagedIsAnError) {
  const auto damage = [&](int count) {
    for (int i = 0; i < count; ++i) {
      write_file(root() / "train" / "dog" / (std::to_string(i) + ".jpg"), std::string("no image"));
    }
  };
  for (int i = 6; i < 294; ++i) {
    add_image(fmt::format("train/dog/{}.jpg", i));
  }
  const LoaderOptions options{.batch_size = 300};
  ASSERT_EQ(open()->size(), 300);
  said_by([&] {
    damage(3);
    Loader(at_size(8), options).next();
    damage(4);
    EXPECT_THAT(failure_of([&] { Loader(at_size(8), options).next(); }),
                HasSubstr("4 of 300 images cannot be read (all of class 'dog')"));
  });
}

TEST_F(ImageFolder, PngLiesBesideJpegUnderAnyName) {
  write_file(root() / "train" / "dog" / "6.PNG", test::plain_png_bytes(20, 30, {10, 20, 30}));
  write_file(root() / "train" / "dog" / "7.jpg", test::plain_png_bytes(30, 20, {10, 20, 30}));
  const auto train = at_size(16);
  ASSERT_EQ(train->size(), 14);
  for (const int64_t index : {12, 13}) {
    const Bytes pixels = test::image_of(*train, index);
    for (size_t i = 0; i < 256; ++i) {
      ASSERT_EQ(pixels[i], 10);
      ASSERT_EQ(pixels[512 + i], 30);
    }
  }
}

TEST_F(ImageFolder, FilesOutsideADatasetAreReadOneByOne) {
  write_file(root() / "train" / "cat" / "0.JPEG", test::turned_jpeg_bytes(16, 40));
  write_file(root() / "train" / "cat" / "1.JPEG", std::string("no image"));
  write_file(root() / "train" / "cat" / "notes.txt", std::string("x"));
  write_file(root() / "train" / ".cache" / "x.png", std::string("x"));
  const std::vector<test::fs::path> files = image_files_in(root() / "train").files;
  ASSERT_EQ(files.size(), 12u);
  EXPECT_EQ(files[0], root() / "train" / "cat" / "0.JPEG");
  EXPECT_EQ(files[11], root() / "train" / "dog" / "5.jpg");
  DatasetInfo info{.name = "files", .channels = 3};
  info.mean = info.std = {0.5, 0.5, 0.5};
  EXPECT_EQ(test::whole_image(*make_image_dataset(info, files), 0, 100).height, 40);
  info.applies_exif = false;
  EXPECT_EQ(test::whole_image(*make_image_dataset(info, files), 0, 100).height, 16);
  const auto data = preprocessed(make_image_dataset(info, files), PreprocessConfig{.size = 8});
  EXPECT_EQ(test::image_of(*data, 2).size(), 192u);
  EXPECT_THAT(failure_of([&] { test::image_of(*data, 1); }),
              AllOf(HasSubstr(files[1].string()), HasSubstr("neither a JPEG nor a PNG")));
  EXPECT_THAT(failure_of([&] { data->label(0); }), HasSubstr("no label"));
}

/// Averages of pixels two by two, which a decoder may give for an image at half its size, are
/// nothing that interpolation without antialias sees.
TEST_F(ImageFolder, WithoutAntialiasThePixelsThemselvesAreTaken) {
  write_file(root() / "train" / "cat" / "0.JPEG", jpeg_bytes(64, 64, JpegKind::noise, {}));
  Bitmap bitmap;
  const auto whole = [](int64_t h, int64_t w) { return Rectangle{0, 0, h, w}; };
  const Rectangle part = open()->decode(0, whole, {64}, bitmap);
  Bytes expected(768);
  resize(bitmap, part, {.antialias = false}, 16, 16, expected.data());
  EXPECT_EQ(
      test::image_of(*preprocessed(open(), PreprocessConfig{.size = 16, .antialias = false}), 0),
      expected);
}

TEST_F(ImageFolder, ADescriptionMayLieAnywhere) {
  const test::fs::path description = folder_.path() / "pets.json";
  write_file(description, R"({"name": "pets", "format": "image_folder", "paths": [")" +
                              root().string() +
                              R"("], "classes": ["dog", "cat"], "mean": [0, 0, 0],
                                 "std": [1, 1, 1], "splits": {"test": "train"}})");
  EXPECT_EQ(open_dataset(description.string(), "test")->size(), 12);
  EXPECT_EQ(open_dataset(description.string(), "train")->label(0), 0);
  EXPECT_THAT(open_dataset(description.string(), "train")->info().classes,
              ElementsAre("dog", "cat"));
}

}  // namespace
}  // namespace moesaic
