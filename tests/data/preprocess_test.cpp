// SPDX-License-Identifier: Apache-2.0
#include "moesaic/data/preprocess.h"
#include "moesaic/data/views.h"

#include "data/data_fixture.h"
#include "moesaic/config/document.h"
#include "moesaic/data/transforms.h"
#include "support/matchers.h"

namespace moesaic {
namespace {

using test::said_by;
using test::usage_of;

DatasetInfo rgb_info(int64_t height, int64_t width) {
  return {.name = "pair",
          .classes = {"a", "b"},
          .channels = 3,
          .height = height,
          .width = width,
          .mean = {0.1, 0.2, 0.3},
          .std = {0.4, 0.5, 0.6}};
}

std::shared_ptr<const Dataset> two_images(int64_t height, int64_t width) {
  Bytes pixels(static_cast<size_t>(2 * 3 * height * width));
  for (size_t i = 0; i < pixels.size(); ++i) pixels[i] = static_cast<uint8_t>(31 * i + i / 11);
  return make_memory_dataset(rgb_info(height, width), pixels, {0, 1});
}

Bitmap bitmap_of(const Dataset& dataset, int64_t index) {
  return test::whole_image(dataset, index, 1);
}

TEST(Preprocess, NothingToDoGivesTheDatasetItself) {
  const auto base = two_images(8, 10);
  EXPECT_EQ(preprocessed(base, PreprocessConfig{}), base);
}

TEST(Preprocess, ImagesAreChannelsLast) {
  const auto base = two_images(8, 10);
  const Bitmap bitmap = bitmap_of(*base, 1);
  const Bytes planes = test::image_of(*base, 1);
  ASSERT_EQ(bitmap.pixels.size(), planes.size());
  for (size_t i = 0; i < 80; ++i) {
    for (size_t c = 0; c < 3; ++c) EXPECT_EQ(bitmap.pixels[3 * i + c], planes[80 * c + i]);
  }
}

TEST(Preprocess, ImagesAreResizedInFullOrFromACentralCrop) {
  const auto base = two_images(8, 12);
  for (const double crop : {0.0, 1.0, 0.75}) {
    for (const char* interpolation : {"bilinear", "bicubic"}) {
      const PreprocessConfig config{
          .size = 5, .central_crop = crop, .interpolation = interpolation};
      const auto data = preprocessed(base, config);
      EXPECT_EQ(data->info().height, 5);
      EXPECT_EQ(data->info().width, 5);
      EXPECT_EQ(data->size(), 2);
      EXPECT_EQ(data->label(1), 1);
      const Rectangle part = crop == 0.0   ? Rectangle{0, 0, 8, 12}
                             : crop == 1.0 ? Rectangle{0, 2, 8, 8}
                                           : Rectangle{1, 3, 6, 6};
      Bytes expected(75);
      const bool cubic = config.interpolation == "bicubic";
      resize(bitmap_of(*base, 1), part,
             {cubic ? Interpolation::bicubic : Interpolation::bilinear, true}, 5, 5,
             expected.data());
      EXPECT_EQ(test::image_of(*data, 1), expected) << crop << interpolation;
    }
  }
}

TEST(Preprocess, TwoSizesMakeARectangle) {
  const auto base = two_images(8, 12);
  PreprocessConfig config{.size = {4, 10}};
  for (const double crop : {0.0, 1.0, 0.5}) {
    config.central_crop = crop;
    const auto data = preprocessed(base, config);
    EXPECT_EQ(data->info().height, 4);
    EXPECT_EQ(data->info().width, 10);
    // As wide as the image and 12 * 4 / 10 high, or half of that.
    const Rectangle part = crop == 0.0   ? Rectangle{0, 0, 8, 12}
                           : crop == 1.0 ? Rectangle{1, 0, 5, 12}
                                         : Rectangle{3, 3, 2, 6};
    Bytes expected(120);
    resize(bitmap_of(*base, 1), part, {}, 4, 10, expected.data());
    EXPECT_EQ(test::image_of(*data, 1), expected) << crop;
    const InputSpec spec = read_input_spec(document_of(input_spec(*data, config)), "there");
    EXPECT_EQ(test::image_of(*preprocessed(base, spec), 1), expected) << crop;
  }
}

TEST(Preprocess, ValuesFollowTheRange) {
  const auto base = two_images(4, 4);
  PreprocessConfig config{.values = "symmetric"};
  const auto symmetric = preprocessed(base, config);
  EXPECT_THAT(symmetric->info().mean, ElementsAre(0.5, 0.5, 0.5));
  EXPECT_EQ(test::image_of(*symmetric, 0), test::image_of(*base, 0));
  Bytes bytes = test::image_of(*base, 0);
  std::vector<float> out(bytes.size());
  CounterRng rng(1, 2, 3);
  ImageTransform(symmetric->info())(bytes.data(), rng, out.data());
  for (size_t i = 0; i < out.size(); ++i) {
    EXPECT_NEAR(out[i], -1.0 + 2.0 * bytes[i] / 255.0, 1e-6);
  }
  config.values = "unit";
  ImageTransform(preprocessed(base, config)->info())(bytes.data(), rng, out.data());
  for (size_t i = 0; i < out.size(); ++i) EXPECT_NEAR(out[i], bytes[i] / 255.0, 1e-6);
}

TEST(Preprocess, MeanAndStdMayBeItsOwn) {
  const auto base = two_images(4, 4);
  PreprocessConfig config{.mean = {0.4914, 0.4822, 0.4465}, .std = {0.2023, 0.1994, 0.2010}};
  const auto own = preprocessed(base, config);
  Bytes bytes = test::image_of(*own, 0);
  EXPECT_EQ(bytes, test::image_of(*base, 0));
  std::vector<float> out(bytes.size());
  CounterRng rng(1, 2, 3);
  ImageTransform(own->info())(bytes.data(), rng, out.data());
  for (size_t i = 0; i < out.size(); ++i) {
    EXPECT_NEAR(out[i], (bytes[i] / 255.0 - config.mean[i / 16]) / config.std[i / 16], 1e-5);
  }
  config.mean = config.std = {0.5};
  EXPECT_THAT(usage_of([&] { preprocessed(base, config); }),
              HasSubstr("3 channels, preprocess.mean 1 values"));
}

TEST(Preprocess, SubsetsPassTheirImagesOn) {
  const auto subset = make_class_subset(two_images(8, 8), {"b"}, "only-b");
  const PreprocessConfig config{.size = 4};
  EXPECT_EQ(test::image_of(*preprocessed(subset, config), 0),
            test::image_of(*preprocessed(two_images(8, 8), config), 1));
}

TEST(Preprocess, WrongSettingsAreRefused) {
  const auto read = [](const std::string& text) {
    return parse<PreprocessConfig>(Document::from_text(text, "recipe").root());
  };
  EXPECT_EQ(read(R"({"size": 128, "values": "symmetric"})").size, 128);
  EXPECT_THAT(usage_of([&] { read(R"({"central_crop": 0.875})"); }),
              HasSubstr("central_crop needs size"));
  EXPECT_THAT(usage_of([&] { read(R"({"size": 8, "truncate": true})"); }),
              HasSubstr("truncate needs interpolation bilinear and antialias false"));
  EXPECT_THAT(usage_of([&] { read(R"({"mean": [0.5], "std": []})"); }),
              HasSubstr("mean and std must be of the same channels"));
  EXPECT_THAT(usage_of([&] { read(R"({"mean": [0.5], "std": [0.5], "values": "unit"})"); }),
              HasSubstr("mean and std are for the values 'standardized', found 'unit'"));
  EXPECT_THAT(usage_of([&] { read(R"({"values": "symetric"})"); }), HasSubstr("symmetric"));
  EXPECT_THAT(usage_of([&] { read(R"({"size": 1000000000})"); }), HasSubstr("size"));
  EXPECT_EQ(read(R"({"size": [64, 96]})").size, Size2d(64, 96));
  EXPECT_EQ(to_json(read(R"({"size": [64, 96]})")).at("size"), (std::vector<int>{64, 96}));
  EXPECT_EQ(to_json(read(R"({"size": 64})")).at("size"), 64);
  EXPECT_THAT(usage_of([&] { read(R"({"size": [64, 0]})"); }),
              HasSubstr("size must have both sides above 0, or be 0"));
  EXPECT_THAT(usage_of([&] { read(R"({"channels": 2})"); }),
              HasSubstr("channels must be 1 (grey), 3 (colours) or 0, found 2"));
}

TEST(Preprocess, MeanAndStdOfBytesAreRefused) {
  const auto refused = [](const std::string& mean, const std::string& std) {
    return usage_of([&] {
      parse<PreprocessConfig>(
          Document::from_text(R"({"mean": )" + mean + R"(, "std": )" + std + "}", "recipe").root());
    });
  };
  EXPECT_THAT(refused("[127.5]", "[58.4]"),
              HasSubstr("mean is of pixels scaled to [0, 1] and must be between 0 and 1, found "
                        "127.5; of pixels from 0 to 255 divide it by 255"));
  EXPECT_THAT(refused("[0.5]", "[58.4]"), HasSubstr("std is of pixels scaled to [0, 1]"));
  EXPECT_THAT(refused("[-0.5]", "[0.5]"), HasSubstr("found -0.5"));
  EXPECT_THAT(refused("[0.5]", "[1e-7]"), HasSubstr("std must be at least 1e-06, found 1e-07"));
  EXPECT_TRUE(unit_problem({0.0, 1.0}, {1.0, 0.004}).empty());
  EXPECT_EQ(unit_problem({2.0}, {2.0}).offending, std::vector<std::string>{"mean"});
  EXPECT_EQ(unit_problem({1.0}, {2.0}).offending, std::vector<std::string>{"std"});
}

TEST(Preprocess, AStdThatFewImagesHaveCausesAWarning) {
  const auto said = [](double std) {
    PreprocessConfig config;
    config.mean.assign(3, 0.5);
    config.std = {0.2, std, 0.2};
    return said_by([&] { preprocessed(two_images(8, 8), config); });
  };
  EXPECT_EQ(said(1.0 / 255), "");  // Pixels from 0 to 255 as they are.
  EXPECT_THAT(said(0.0009), HasSubstr(": std is of pixels scaled to [0, 1], whose levels are 1/255 "
                                      "apart, and 0.0009 is less; divide std by 255 only once"));
}

TEST(RandomCrop, KeepsAreaAspectAndPlace) {
  CropConfig config;
  double min = 1, max = 0;
  for (uint64_t position = 0; position < 4000; ++position) {
    CounterRng rng(1, 2, position);
    const Rectangle part = random_crop(config, 60, 90, rng);
    ASSERT_GE(part.top, 0);
    ASSERT_GE(part.left, 0);
    ASSERT_LE(part.top + part.height, 60);
    ASSERT_LE(part.left + part.width, 90);
    const double area = static_cast<double>(part.height * part.width) / (60 * 90);
    ASSERT_GE(area, 0.05);
    const double aspect = static_cast<double>(part.width) / static_cast<double>(part.height);
    ASSERT_NEAR(aspect, 1.04, 0.29 + 0.5 / static_cast<double>(part.height));
    min = std::min(min, area);
    max = std::max(max, area);
  }
  EXPECT_LT(min, 0.06);
  EXPECT_GT(max, 0.8);
}

TEST(RandomCrop, IsTheFullImageWhereNoCropFits) {
  CropConfig config;
  config.min_area = 0.9;
  CounterRng rng(1, 2, 3);
  const Rectangle part = random_crop(config, 4, 400, rng);
  EXPECT_EQ(part.height, 4);
  EXPECT_EQ(part.width, 400);
  for (const int64_t side : {1, 2, 3}) {
    const Rectangle tiny = random_crop({}, side, side, rng);
    EXPECT_GE(tiny.height, 1);
    EXPECT_LE(tiny.top + tiny.height, side);
  }
}

}  // namespace
}  // namespace moesaic
