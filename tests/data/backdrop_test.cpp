// SPDX-License-Identifier: Apache-2.0
#include "moesaic/data/derived.h"

#include <set>
#include <utility>

#include "data/data_fixture.h"
#include "data/jpeg_bytes.h"
#include "moesaic/data/source.h"
#include "support/matchers.h"

namespace moesaic {
namespace {

using test::failure_of;
using test::image_of;
using test::usage_of;

/// `count` images of one value each, from `first` on.
std::shared_ptr<const Dataset> plain(int64_t channels, int64_t height, int64_t width, int count,
                                     uint8_t first, const std::string& split = "train") {
  const std::vector<double> ones(static_cast<size_t>(channels), 1.0);
  DatasetInfo info{"plain", split, "", {"a", "b", "c"}, channels, height, width, ones, ones};
  Bytes pixels, labels;
  for (int i = 0; i < count; ++i) {
    const auto value = static_cast<uint8_t>(first + i);
    pixels.insert(pixels.end(), static_cast<size_t>(channels * height * width), value);
    labels.push_back(static_cast<uint8_t>(i % 3));
  }
  return make_memory_dataset(info, pixels, labels);
}

constexpr uint8_t kBehind = 100;

std::shared_ptr<const Dataset> on_backdrops(const BackdropConfig& config = {.size = Size2d(2, 3)},
                                            const std::string& split = "train") {
  return make_on_backdrops(plain(3, 6, 8, 60, 1, split), plain(3, 9, 11, 5, kBehind), config,
                           "mine", "about");
}

TEST(Backdrop, EveryImageOfTheBaseIsOnceSomewhereOnABackdrop) {
  const auto data = on_backdrops();
  EXPECT_EQ(data->size(), 60);
  EXPECT_EQ(data->info().name, "mine");
  EXPECT_EQ(data->info().height, 6);
  EXPECT_EQ(data->info().width, 8);
  EXPECT_THAT(data->info().classes, ElementsAre("a", "b", "c"));
  EXPECT_THAT(data->info().mean, ElementsAre(0, 0, 0));
  EXPECT_THAT(data->info().std, ElementsAre(1, 1, 1));
  std::set<uint8_t> behind;
  std::set<std::pair<int64_t, int64_t>> places;
  for (int64_t i = 0; i < 60; ++i) {
    EXPECT_EQ(data->label(i), i % 3);
    const Bytes image = image_of(*data, i);
    const auto own = static_cast<uint8_t>(1 + i);
    EXPECT_EQ(std::count(image.begin(), image.end(), own), 3 * 2 * 3);
    const int64_t at = std::find(image.begin(), image.end(), own) - image.begin();
    const int64_t top = at / 8, left = at % 8;
    places.emplace(top, left);
    const uint8_t other = image[at == 0 ? 47 : 0];
    behind.insert(other);
    for (int64_t j = 0; j < 3 * 48; ++j) {
      const int64_t y = j / 8 % 6, x = j % 8;
      const bool inside = y >= top && y < top + 2 && x >= left && x < left + 3;
      ASSERT_EQ(image[static_cast<size_t>(j)], inside ? own : other) << i << " " << j;
    }
  }
  EXPECT_EQ(behind, (std::set<uint8_t>{100, 101, 102, 103, 104}));
  int64_t bottom = 0, right = 0;
  for (const auto& [top, left] : places) {
    bottom = std::max(bottom, top);
    right = std::max(right, left);
  }
  EXPECT_GT(places.size(), 20U);
  EXPECT_EQ(bottom, 4);
  EXPECT_EQ(right, 5);
}

TEST(Backdrop, IsAFunctionOfSeedSplitAndIndex) {
  const BackdropConfig config{.size = Size2d(2, 3)}, other{.size = Size2d(2, 3), .seed = 2};
  bool by_seed = false, by_split = false;
  for (int64_t i = 10; i < 20; ++i) {
    const Bytes image = image_of(*on_backdrops(config), i);
    EXPECT_EQ(image_of(*on_backdrops(config), i), image);
    by_seed |= image_of(*on_backdrops(other), i) != image;
    by_split |= image_of(*on_backdrops(config, "test"), i) != image;
  }
  EXPECT_TRUE(by_seed);
  EXPECT_TRUE(by_split);
}

TEST(Backdrop, RefusesWhatDoesNotFit) {
  const auto refusal = [](std::shared_ptr<const Dataset> backdrops, Size2d size) {
    return usage_of([&] {
      make_on_backdrops(plain(3, 6, 8, 2, 1), std::move(backdrops), {.size = size}, "mine");
    });
  };
  EXPECT_THAT(
      refusal(plain(1, 6, 8, 2, 1), 2),
      HasSubstr("'mine': backdrop.images: those of 'plain' have 1 channels, 'plain' has 3"));
  EXPECT_THAT(refusal(plain(3, 6, 8, 2, 1), 7),
              HasSubstr("'mine': backdrop.size is 7 x 7, but images of 'plain' are 6 x 8"));
}

/// The dataset "tiny", and "on" with its images on backdrops "photos".
class BackdropFiles : public ::testing::Test {
 protected:
  BackdropFiles() {
    home_.write_files(home_.cache());
    describe_on(R"("base": "tiny", "backdrop": {"images": "photos", "size": 2})");
    home_.write_description("photos", R"({"name": "photos", "base": "tiny",
                                          "keep_classes": ["hen"]})");
  }
  void describe_on(const std::string& settings) {
    home_.write_description("on", R"({"name": "on", )" + settings + "}");
  }
  void describe_photos() {
    home_.write_description("photos",
                            R"({"name": "photos", "format": "image_folder", "classes": ["leaf"],
                      "mean": [0, 0, 0], "std": [1, 1, 1], "splits": {"test": "train"}})");
  }
  static std::string failure() {
    return failure_of([] { open_dataset("on", "train"); });
  }
  static std::string misuse() {
    return usage_of([] { open_dataset("on", "train"); });
  }

  test::TinyHome home_;
};

TEST_F(BackdropFiles, TheBackdropIsAnotherDataset) {
  const auto data = open_dataset("on", "test"), tiny = open_dataset("tiny", "test");
  EXPECT_EQ(test::labels_of(*data), test::labels_of(*tiny));
  EXPECT_EQ(data->info().split, "test");
  EXPECT_NE(image_of(*data, 0), image_of(*tiny, 0));
  test::expect_verified("on");
}

TEST_F(BackdropFiles, PhotographsMayBeAFolderBesideTheDescription) {
  const test::TempDir folder;
  for (const char* kind : {"leaf", "twig", "root"}) {
    write_file(folder.path() / "photos" / "train" / kind / "a.jpg",
               test::jpeg_bytes(40, 30, test::JpegKind::rgb, {10, 200, 90}));
  }
  write_file(folder.path() / "tiles.json", std::string(R"({"name": "tiles", "base": "./photos",
                             "mosaic": {"deciding": ["leaf", "twig"], "grid": 1, "tile": 4}})"));
  write_file(folder.path() / "mine.json", std::string(R"({"name": "mine", "base": "./tiles.json",
                             "backdrop": {"images": "./photos", "size": 2}})"));
  const auto data = open_dataset((folder.path() / "mine.json").string(), "train");
  EXPECT_EQ(data->info().height, 4);
  EXPECT_TRUE(data->is_endless());
  const Bytes image = image_of(*data, 7000);
  for (size_t i = 0; i < 48; ++i) {
    EXPECT_NEAR(image[i], std::vector<int>({10, 200, 90})[i / 16], 3) << i;
  }
}

TEST_F(BackdropFiles, MissingBackdropsAreToldAsOtherFilesAre) {
  describe_photos();
  const std::string place =
      (std::filesystem::path(home_.root()) / "datasets/cache/photos").string();
  EXPECT_THAT(failure(), HasSubstr("dataset 'photos': folder 'train' not found in " + place));
  EXPECT_EQ(DatasetSource("tiny").where(), home_.cache().string());
  EXPECT_EQ(DatasetSource("on").where(), "not here; place or link it at " + place);
  EXPECT_THAT(failure_of([] { DatasetSource("on").verify(); }), HasSubstr("'photos'"));
  EXPECT_THAT(failure_of([] { DatasetSource("on").fetch({.show_progress = false}); }),
              HasSubstr("dataset 'photos': the description has no URL"));
}

TEST_F(BackdropFiles, IsPlannedWithoutThem) {
  describe_photos();
  EXPECT_THAT(failure_of([] { PlannedDatasets()("on", "train"); }), HasSubstr("'photos'"))
      << "tiny does not state how many images it has";
  const Bytes tiny = test::read_file(std::filesystem::path(home_.root()) / "datasets/tiny.json");
  std::string sized(tiny.begin(), tiny.end());
  const std::string name = R"("name": "tiny")";
  sized.replace(sized.find(name), name.size(),
                R"("name": "sized", "folder": "tiny", "num_images": {"train": 12, "test": 5})");
  home_.write_description("sized", sized);
  describe_on(R"("base": "sized", "backdrop": {"images": "photos", "size": 2})");
  testing::internal::CaptureStderr();
  const auto planned = PlannedDatasets()("on", "train");
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              HasSubstr("'on': folder 'train' of its backdrops is not here"));
  EXPECT_EQ(planned->size(), 12);
  EXPECT_THAT(planned->info().std, ElementsAre(1));
}

TEST_F(BackdropFiles, DescriptionsAreChecked) {
  describe_on(R"("format": "clusters", "clusters": {"alpha": [0.5, 2], "beta": [1, 2],
      "gamma": [0.5, 3], "noise": 1}, "backdrop": {"images": "photos"})");
  EXPECT_THAT(misuse(), HasSubstr("backdrop needs base"));
  describe_on(R"("base": "tiny", "backdrop": {"images": "photo"})");
  EXPECT_THAT(misuse(),
              HasSubstr("unknown dataset 'photo' (a folder of images needs a slash in its "
                        "name); did you mean 'photos'?"));
  describe_on(R"("base": "tiny", "backdrop": {"size": 2})");
  EXPECT_THAT(misuse(), HasSubstr("missing key 'images' in backdrop"));
  describe_on(R"("base": "tiny", "backdrop": {"images": "on", "size": 2})");
  EXPECT_THAT(misuse(), HasSubstr("are circular"));
}

}  // namespace
}  // namespace moesaic
