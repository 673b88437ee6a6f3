// SPDX-License-Identifier: Apache-2.0
#include "moesaic/data/pack.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "data/png_bytes.h"
#include "data/shard_fixture.h"
#include "moesaic/formats/image.h"
#include "support/faults.h"
#include "support/matchers.h"

namespace moesaic {
namespace {

using test::error_of;
using test::jpeg_bytes;
using test::JpegKind;
using test::usage_of;

/// A folder of images: 7 cats as JPEG, 4 dogs as PNG to train with, 3 cats to test with.
class PackFolder : public ::testing::Test {
 protected:
  PackFolder() : data_env_("MOESAIC_DATA", std::nullopt) {
    for (int i = 0; i < 7; ++i) {
      write_file(root() / "train" / "cat" / (std::to_string(i) + ".jpg"),
                 jpeg_bytes(20 + i, 40, JpegKind::noise, {}));
      if (i < 4) {
        write_file(root() / "train" / "dog" / (std::to_string(i) + ".png"),
                   test::plain_png_bytes(30, static_cast<uint32_t>(10 + i), {1, 2, 3}));
      }
      if (i < 3) {
        write_file(root() / "val" / "cat" / (std::to_string(i) + ".jpg"),
                   jpeg_bytes(9, 9 + i, JpegKind::grey, {8}));
      }
    }
  }

  test::fs::path root() const { return folder_ / "images"; }
  test::fs::path out() const { return folder_ / "packed"; }
  PackResult pack(PackOptions options) const {
    options.show_progress = false;
    PackResult result;
    test::said_by([&] { result = pack_dataset(root().string() + "/", out(), options); });
    return result;
  }
  std::string refusal(ErrorKind kind, const std::string& name, PackOptions options) const {
    options.show_progress = false;
    ::testing::internal::CaptureStderr();
    std::string message = error_of(kind, [&] { pack_dataset(name, folder_ / "packed", options); });
    ::testing::internal::GetCapturedStderr();
    EXPECT_THAT(folder_.names(), ElementsAre("images")) << "something is left";
    return message;
  }
  /// Label and file of every image.
  static std::multiset<std::pair<int64_t, std::string>> files_in(const Dataset& data) {
    std::multiset<std::pair<int64_t, std::string>> all;
    for (int64_t i = 0; i < data.size(); ++i) all.emplace(data.label(i), data.encoded(i)->bytes);
    return all;
  }

  test::ScopedEnv data_env_;
  test::TempDir folder_;
};

TEST_F(PackFolder, ClassesCalledByNumbersKeepTheirNames) {
  test::fs::remove_all(root());
  for (const char* name : {"1", "2", "10"}) {
    write_file(root() / "train" / name / "a.png", test::plain_png_bytes(4, 4, {1, 2, 3}));
    write_file(root() / "val" / name / "a.png", test::plain_png_bytes(4, 4, {1, 2, 3}));
  }
  const PackResult result = pack({.num_shards = 1});
  const auto data = open_dataset(result.description.string(), "train");
  EXPECT_THAT(data->info().classes, ElementsAre("1", "10", "2"));
  std::vector<int64_t> labels = test::labels_of(*data);
  std::sort(labels.begin(), labels.end());
  EXPECT_THAT(labels, ElementsAre(0, 1, 2));
}

TEST_F(PackFolder, OnFaultsIsCompleteOrAbsent) {
  NEEDS_FAULTS();
  const test::fs::path disk = folder_ / "disk", place = disk / "a/packed";
  const auto prepare = [&] {
    test::fs::remove_all(disk);
    test::fs::create_directory(disk);
  };
  const auto pack = [&] {
    pack_dataset(root().string() + "/", place, {.num_shards = 2, .show_progress = false});
  };
  const auto check = [&](const test::Outcome&) {
    if (!test::fs::exists(place)) pack();
    const std::string name = (place / "packed.json").string();
    test::expect_verified(name);
    EXPECT_EQ(open_dataset(name, "train")->size(), 11);
  };
  for (const char* effect : {"kill", "power", "EIO", "ENOSPC"}) {
    EXPECT_GT(test::for_every_call({"change", effect}, disk, prepare, pack, check), 10);
  }
  EXPECT_GT(test::for_every_call({"write", "short"}, disk, prepare, pack, check), 2);
}

TEST_F(PackFolder, CopiesFilesUnchangedInBalancedShards) {
  const PackResult result = pack({.num_shards = 3});
  EXPECT_EQ(result.description, out() / "packed.json");
  ASSERT_EQ(result.splits.size(), 2u);
  EXPECT_EQ(result.splits[0].num_images, 11);
  EXPECT_EQ(result.splits[0].num_shards, 3);
  EXPECT_EQ(result.splits[1].split, "test");
  EXPECT_EQ(result.splits[1].num_shards, 1);  // As long as those of the training split.
  const std::string name = result.description.string();
  for (const char* split : {"train", "test"}) {
    const auto packed = open_dataset(name, split), folder = open_dataset(root().string(), split);
    EXPECT_EQ(files_in(*packed), files_in(*folder));
    EXPECT_EQ(packed->info().classes, folder->info().classes);
    EXPECT_EQ(packed->info().mean, folder->info().mean);
  }
  const auto train = open_dataset(name, "train");
  EXPECT_THAT(train->blocks(), ElementsAre(3, 4, 4));
  const std::vector<int64_t> labels = test::labels_of(*train);
  EXPECT_FALSE(std::is_sorted(labels.begin(), labels.end())) << "shards are alike";
  test::expect_verified(name);
  // The folder may move.
  test::fs::rename(out(), folder_ / "elsewhere");
  EXPECT_EQ(open_dataset((folder_ / "elsewhere" / "packed.json").string(), "train")->size(), 11);
}

TEST_F(PackFolder, IsDataByItsPath) {
  pack({.num_shards = 2});
  const std::string folder = (folder_ / "renamed").string();
  test::fs::rename(out(), folder);
  EXPECT_EQ(files_in(*open_dataset(folder, "train")),
            files_in(*open_dataset(root().string(), "train")));
  test::expect_verified(folder + "/");
  test::fs::copy_file(folder + "/packed.json", folder + "/other.json");
  EXPECT_THAT(usage_of([&] { open_dataset(folder, "train"); }),
              HasSubstr("folder 'train' not found in the dataset"));
}

TEST_F(PackFolder, TheSameSeedGivesTheSameBytes) {
  const auto packed = [&](uint64_t seed) {
    pack({.num_shards = 2, .seed = seed});
    const Bytes bytes = test::read_file(out() / "train-00001.tar");
    test::fs::remove_all(out());
    return bytes;
  };
  const Bytes first = packed(1);
  EXPECT_EQ(packed(1), first);
  EXPECT_NE(packed(2), first);
}

TEST_F(PackFolder, ResizesTheShorterSideAndNeverEnlarges) {
  const std::string name =
      pack({.num_shards = 1, .split = "train", .size = 12}).description.string();
  EXPECT_THAT(dataset_splits(name), ElementsAre("train"));
  const auto data = open_dataset(name, "train");
  std::multiset<std::pair<int64_t, int64_t>> sizes;
  for (int64_t i = 0; i < data->size(); ++i) {
    const std::string file = data->encoded(i)->bytes;
    const ImageDecoder decoder({reinterpret_cast<const uint8_t*>(file.data()), file.size()});
    sizes.emplace(decoder.height(), decoder.width());
    if (data->label(i) == 1) {
      EXPECT_EQ(file.starts_with("\x89PNG"), decoder.width() <= 12 && decoder.height() == 30);
    }
  }
  // 40 * 12 / (20 + i) and, for the dogs, 30 x 10, 11 and 12 as they are, 30 * 12 / 13 smaller.
  EXPECT_THAT(
      sizes, ElementsAre(std::pair(12, 18), std::pair(12, 19), std::pair(12, 20), std::pair(12, 21),
                         std::pair(12, 22), std::pair(12, 23), std::pair(12, 24), std::pair(28, 12),
                         std::pair(30, 10), std::pair(30, 11), std::pair(30, 12)));
}

TEST_F(PackFolder, EverythingHeldOutIsASplitOfItsOwn) {
  write_file(root() / "held.json", R"({"name": "held", "format": "image_folder", "paths": [")" +
                                       root().string() + R"("], "mean": [0, 0, 0],
      "std": [1, 1, 1], "validation": 0.3, "exif_orientation": true})");
  const std::string held = (root() / "held.json").string();
  ::testing::internal::CaptureStderr();
  const PackResult result = pack_dataset(held, out(), {.num_shards = 2, .show_progress = false});
  ::testing::internal::GetCapturedStderr();
  ASSERT_EQ(result.splits.size(), 3u);
  EXPECT_EQ(files_in(*open_dataset(result.description.string(), "validation")),
            files_in(*open_dataset(held, "validation")));
  EXPECT_TRUE(open_dataset(result.description.string(), "train")->encoded(0)->applies_exif);
}

TEST_F(PackFolder, WhatCannotBePackedIsRefused) {
  const std::string name = root().string() + "/";
  EXPECT_THAT(refusal(ErrorKind::usage, name, {.num_shards = 12}),
              HasSubstr("--shards is 12, but"));
  EXPECT_THAT(refusal(ErrorKind::usage, name, {.split = "tset"}), HasSubstr("did you mean 'test'"));
  EXPECT_THAT(refusal(ErrorKind::usage, name, {.num_shards = 0}), HasSubstr("--shards"));
  EXPECT_THAT(refusal(ErrorKind::usage, name, {.quality = 101}), HasSubstr("--quality"));
  EXPECT_THAT(refusal(ErrorKind::usage, "latent-small", {}), HasSubstr("are not images"));
  EXPECT_THAT(refusal(ErrorKind::usage, "no-such-dataset", {}), HasSubstr("unknown dataset"));
  EXPECT_THAT(usage_of([&] { pack_dataset(name, root(), {}); }),
              AllOf(HasSubstr("already exists"), HasSubstr("name a new or an empty folder")));
  EXPECT_THAT(usage_of([&] { pack_dataset(name, folder_ / "a b", {}); }), HasSubstr("'a b'"));
  // Refused before the images are read: the description in the folder has its name.
  EXPECT_THAT(usage_of([&] { pack_dataset(name, folder_ / std::string(251, 'a'), {}); }),
              AllOf(HasSubstr("--out: its name has 251 bytes"), HasSubstr("may have at most 255")));
  test::fs::remove_all(root() / "val");
  EXPECT_THAT(refusal(ErrorKind::usage, name, {.split = "test"}), HasSubstr("has no split 'test'"));
  EXPECT_EQ(pack({}).splits.size(), 2u);  // A part of train/ is the validation split.
}

TEST_F(PackFolder, AFullDiskLeavesNothing) {
  const test::FileSizeLimit limit(4000);
  EXPECT_THAT(refusal(ErrorKind::failure, root().string() + "/", {.num_shards = 1}),
              HasSubstr((out() / "train-00000.tar").string() + ": cannot be written"));
}

TEST_F(PackFolder, DamagedImagesAreLeftOutWithinTheLimit) {
  write_file(root() / "train" / "cat" / "3.jpg", std::string("no image"));
  const PackResult result = pack({.num_shards = 11});
  EXPECT_EQ(result.splits[0].num_images, 10);
  EXPECT_EQ(result.splits[0].num_shards, 10);  // One has nothing left in it.
  EXPECT_EQ(result.splits[0].num_skipped, 1);
  EXPECT_EQ(open_dataset(result.description.string(), "train")->size(), 10);
  test::fs::remove_all(out());
  write_file(root() / "train" / "cat" / "4.jpg", std::string());
  EXPECT_THAT(refusal(ErrorKind::failure, root().string() + "/", {}),
              AllOf(HasSubstr("2 of 11 images cannot be read"),
                    HasSubstr("/train/cat/")));  // By their names, as in training.
}

TEST(Pack, PixelsOfDatasetsStayAsTheyAre) {
  const test::TinyHome home;
  home.write_files(home.cache());
  const test::TempDir folder;
  const PackResult result =
      pack_dataset("tiny", folder / "tiny-shards", {.num_shards = 4, .show_progress = false});
  const auto packed = open_dataset(result.description.string(), "train");
  const auto tiny = open_dataset("tiny", "train");
  EXPECT_EQ(packed->info().channels, 1);
  EXPECT_EQ(packed->info().height, 4);
  EXPECT_EQ(packed->info().classes, tiny->info().classes);
  const auto all = [](const Dataset& data) {
    std::multiset<std::pair<int64_t, Bytes>> found;
    for (int64_t i = 0; i < data.size(); ++i) found.emplace(data.label(i), test::image_of(data, i));
    return found;
  };
  EXPECT_EQ(all(*packed), all(*tiny));
  EXPECT_THAT(packed->blocks(), ElementsAre(3, 3, 3, 3));
}

}  // namespace
}  // namespace moesaic
