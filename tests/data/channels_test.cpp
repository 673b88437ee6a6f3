// SPDX-License-Identifier: Apache-2.0
// Grey images for networks of colours, colours for networks of grey.
#include "moesaic/data/resize.h"

#include <fmt/format.h>

#include "data/data_fixture.h"
#include "data/jpeg_bytes.h"
#include "data/png_bytes.h"
#include "moesaic/data/dataset.h"
#include "moesaic/data/pack.h"
#include "moesaic/data/preprocess.h"
#include "moesaic/data/source.h"
#include "support/matchers.h"

namespace moesaic {
namespace {

using ::testing::Each;

TEST(Channels, BecomeGreyAsByPillowAndColoursAgain) {
  Bitmap bitmap{1, 2, 3, {255, 0, 0, 10, 20, 30}};
  convert_channels(bitmap, 3);
  EXPECT_EQ(bitmap.pixels.size(), 6u);
  convert_channels(bitmap, 1);
  EXPECT_EQ(bitmap.channels, 1);
  EXPECT_EQ(bitmap.pixels, (std::vector<uint8_t>{76, 18}));
  convert_channels(bitmap, 3);
  EXPECT_EQ(bitmap.pixels, (std::vector<uint8_t>{76, 76, 76, 18, 18, 18}));
  EXPECT_EQ(converted_values({0.5}, 3), (std::vector<double>{0.5, 0.5, 0.5}));
  EXPECT_NEAR(converted_values({1.0, 0.0, 0.5}, 1).at(0), 0.356, 1e-9);
  EXPECT_FALSE(can_convert_channels(2, 3));
}

/// A folder of two grey images of 4 x 4 pixels.
class GreyFolder : public ::testing::Test {
 protected:
  GreyFolder() : data_env_("MOESAIC_DATA", std::nullopt) {
    for (const char* split : {"train", "val"}) {
      write_file(root() / split / "dark" / "a.png", test::plain_png_bytes(4, 4, {40, 40, 40}));
      write_file(root() / split / "light" / "b.png", test::plain_png_bytes(4, 4, {90, 90, 90}));
    }
  }
  test::fs::path root() const { return folder_ / "images"; }
  std::shared_ptr<const Dataset> open() const { return open_dataset(root().string(), "train"); }

  test::ScopedEnv data_env_;
  test::TempDir folder_;
};

TEST_F(GreyFolder, IsWhatTheNetworkTakes) {
  PreprocessConfig config{.size = 4};
  const auto data = open();
  EXPECT_EQ(for_network(config, data->info(), {3, 4, 4}).channels, 3);
  const auto grey = preprocessed(data, for_network(config, data->info(), {1, 4, 4}));
  EXPECT_EQ(grey->info().channels, 1);
  EXPECT_EQ(grey->info().mean.size(), 1u);
  EXPECT_EQ(grey->info().std.size(), 1u);
  EXPECT_THAT(test::image_of(*grey, 0), AllOf(::testing::SizeIs(16), Each(40)));
  const InputSpec spec = input_spec(*grey, for_network(config, data->info(), {1, 4, 4}));
  EXPECT_EQ(test::said_by([&] { warn_overridden(spec, data->info(), "run"); }), "")
      << "the same mean and std, made grey";
  EXPECT_EQ(spec.channel_order, "gray");
  EXPECT_FALSE(document_of(spec).contains("channels"));
  // What eval and predict make of other files, and of grey data in memory.
  EXPECT_EQ(test::image_of(*preprocessed(open(), spec), 1), test::image_of(*grey, 1));
  config.channels = 3;
  const auto colours =
      preprocessed(preprocessed(data, for_network({.size = 4}, data->info(), {1, 4, 4})), config);
  EXPECT_THAT(test::image_of(*colours, 1), AllOf(::testing::SizeIs(48), Each(90)));
}

TEST_F(GreyFolder, BecomesAsLargeAsTheNetworkTakesIt) {
  const DatasetInfo of_any_size = open()->info();
  EXPECT_EQ(for_network({}, of_any_size, {3, 8, 12}).size, Size2d(8, 12));
  EXPECT_EQ(for_network({.size = 4}, of_any_size, {3, 8, 12}).size, Size2d(4));
  DatasetInfo of_one_size = of_any_size;
  of_one_size.height = of_one_size.width = 4;
  EXPECT_EQ(for_network({}, of_one_size, {3, 8, 12}).size, Size2d(0));
}

TEST_F(GreyFolder, OfADescriptionHasAsManyChannelsAsItsMean) {
  const auto opened = [&](const std::string& mean) {
    write_file(folder_ / "d.json", R"({"name": "d", "format": "image_folder", "paths": [")" +
                                       root().string() + R"("], "mean": )" + mean + R"(, "std": )" +
                                       mean + "}");
    return open_dataset((folder_ / "d.json").string(), "train");
  };
  EXPECT_EQ(opened("[0.5]")->info().channels, 1);
  EXPECT_EQ(for_network({}, opened("[0.5]")->info(), {3, 4, 4}).channels, 0) << "it tells";
  EXPECT_EQ(opened("[0.5, 0.5, 0.5]")->info().channels, 3);
  EXPECT_EQ(for_network({}, opened("[]")->info(), {1, 4, 4}).channels, 1) << "as of a folder";
  EXPECT_THAT(test::usage_of([&] { opened("[127.5]"); }),
              AllOf(HasSubstr("d.json:1:"), HasSubstr("pixels scaled to [0, 1]"),
                    HasSubstr("divide it by 255")));
}

TEST_F(GreyFolder, IsTheSameInShards) {
  const auto packed = [&](const std::string& name, int64_t size) {
    ::testing::internal::CaptureStderr();
    const PackResult result = pack_dataset(name, folder_ / fmt::format("packed-{}", size),
                                           {.num_shards = 1, .size = size, .show_progress = false});
    ::testing::internal::GetCapturedStderr();
    return open_dataset(result.description.string(), "train");
  };
  const auto as_taken = [](const std::shared_ptr<const Dataset>& data, int64_t channels) {
    return preprocessed(data, for_network({.size = 4}, data->info(), {channels, 4, 4}));
  };
  const std::string folder = root().string() + "/";
  for (const int64_t size : {0, 2}) {
    const auto shards = packed(folder, size);
    for (const int64_t channels : {1, 3}) {
      const auto from_folder = as_taken(open(), channels), taken = as_taken(shards, channels);
      EXPECT_EQ(taken->info().channels, channels);
      EXPECT_EQ(taken->info().mean, from_folder->info().mean);
      EXPECT_EQ(taken->info().std, from_folder->info().std);
      const int64_t light = taken->label(0) == 1 ? 0 : 1;
      EXPECT_EQ(test::image_of(*taken, light), test::image_of(*from_folder, 1));
    }
  }
  write_file(folder_ / "d.json", R"({"name": "d", "format": "image_folder", "paths": ["images"],
                                     "mean": [0.25], "std": [0.5]})");
  const DatasetInfo described = packed((folder_ / "d.json").string(), 4)->info();
  EXPECT_FALSE(described.has_flexible_channels);
  EXPECT_EQ(described.mean, std::vector<double>{0.25});
}

TEST_F(GreyFolder, AnImageThatLacksItsEndIsUsedAndNamedOnce) {
  for (const char* name : {"dark/a.png", "light/b.png"}) {
    Bytes bytes = test::read_file(root() / "train" / name);
    bytes.resize(bytes.size() - 12);
    write_file(root() / "train" / name, bytes);
  }
  const auto data = preprocessed(open(), PreprocessConfig{.size = 4});
  const std::string said = test::said_by([&] {
    for (int64_t i : {0, 1, 0, 1}) EXPECT_EQ(test::image_of(*data, i)[0], i == 0 ? 40 : 90);
  });
  EXPECT_THAT(said,
              HasSubstr("a.png: readable, with a defect: the image is complete, but not the file"));
  EXPECT_EQ(said.find("readable"), said.rfind("readable"));
}

TEST_F(GreyFolder, AnImageThatIsTooLargeIsRefusedWithTheLimit) {
  const test::ScopedEnv less("MOESAIC_MAX_PIXELS", "15");
  const std::string error =
      test::failure_of([&] { test::image_of(*preprocessed(open(), {.size = 4}), 0); });
  EXPECT_THAT(error, AllOf(HasSubstr("a.png: 4 x 4 pixels are more than the 15"),
                           HasSubstr("set MOESAIC_MAX_PIXELS to 16")));
}

}  // namespace
}  // namespace moesaic
