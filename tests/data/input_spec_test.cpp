// SPDX-License-Identifier: Apache-2.0
#include "moesaic/data/preprocess.h"

#include <torch/torch.h>

#include "data/data_fixture.h"
#include "moesaic/data/dataset.h"
#include "moesaic/data/loader.h"
#include "moesaic/data/source.h"
#include "support/matchers.h"

namespace moesaic {
namespace {

using Json = nlohmann::ordered_json;

std::shared_ptr<const Dataset> two_wide_images() {
  DatasetInfo info{"folder/of/pairs/", "test",         "", {"a", "b"}, 3, 8, 12,
                   {0.1, 0.2, 0.3},    {0.4, 0.5, 0.6}};
  test::Bytes pixels(2 * 3 * 8 * 12);
  for (size_t i = 0; i < pixels.size(); ++i) pixels[i] = static_cast<uint8_t>(31 * i + i / 11);
  return make_memory_dataset(info, pixels, {0, 1});
}

std::vector<PreprocessConfig> ways_to_preprocess() {
  std::vector<PreprocessConfig> ways(1);
  for (const double crop : {0.0, 1.0, 0.75}) {
    for (const char* interpolation : {"bilinear", "bicubic"}) {
      for (const bool antialias : {true, false}) {
        ways.push_back(PreprocessConfig{.size = 5,
                                        .central_crop = crop,
                                        .interpolation = interpolation,
                                        .antialias = antialias,
                                        .values = crop == 1.0   ? "symmetric"
                                                  : crop == 0.0 ? "unit"
                                                                : "standardized"});
      }
    }
  }
  ways.push_back(ways[2]);
  ways.back().truncate = true;
  ways.push_back(ways[0]);
  ways.back().mean = ways.back().std = {0.2, 0.3, 0.4};
  return ways;
}

at::Tensor per_channel(const Json& numbers) {
  return torch::tensor(numbers.get<std::vector<double>>()).to(torch::kFloat).view({-1, 1, 1});
}

/// The input by the document's words alone, with PyTorch's functions.
at::Tensor by_the_document(const Json& facts, at::Tensor image_HWC) {
  const int64_t height = image_HWC.size(0), width = image_HWC.size(1);
  const double crop = facts.at("central_crop");
  if (crop > 0) {
    const auto side =
        static_cast<int64_t>(static_cast<double>(std::min(height, width)) * crop + 0.5);
    image_HWC = image_HWC.narrow(0, (height - side) / 2, side).narrow(1, (width - side) / 2, side);
  }
  namespace F = torch::nn::functional;
  F::InterpolateFuncOptions how;
  how.size(std::vector<int64_t>{facts.at("input_size")[1], facts.at("input_size")[2]});
  how.antialias(facts.at("antialias").get<bool>()).align_corners(false);
  if (facts.at("interpolation") == "bicubic") {
    how.mode(torch::kBicubic);
  } else {
    how.mode(torch::kBilinear);
  }
  const at::Tensor image_1CHW = image_HWC.permute({2, 0, 1}).unsqueeze(0);
  const bool truncate = facts.at("truncate");
  const at::Tensor bytes =
      F::interpolate(truncate ? image_1CHW.to(torch::kFloat) : image_1CHW, how)[0];
  return (bytes.floor() * facts.at("rescale_factor").get<double>() -
          per_channel(facts.at("mean"))) /
         per_channel(facts.at("std"));
}

TEST(InputSpec, AReaderOfTheDocumentAloneMakesTheSameInput) {
  const auto base = two_wide_images();
  for (const PreprocessConfig& way : ways_to_preprocess()) {
    const auto data = preprocessed(base, way);
    const InputSpec spec = input_spec(*data, way);
    const Json facts = Json::parse(document_of(spec).dump());
    const LoaderOptions all{.batch_size = 2};
    const at::Tensor wanted = Loader(data, all).next().inputs[1];
    const auto again = preprocessed(base, read_input_spec(facts, "there"));
    EXPECT_TRUE(torch::equal(Loader(again, all).next().inputs[1], wanted)) << facts;
    Bitmap bitmap;
    const auto whole = [](int64_t h, int64_t w) { return Rectangle{0, 0, h, w}; };
    base->decode(1, whole, {1}, bitmap);
    const at::Tensor image =
        torch::from_blob(bitmap.pixels.data(), {bitmap.height, bitmap.width, 3}, torch::kByte);
    EXPECT_TRUE(torch::allclose(by_the_document(facts, image), wanted, 0, 1e-6)) << facts;
    EXPECT_EQ(document_of(read_input_spec(facts, "there")), facts);
  }
}

TEST(InputSpec, SaysWhatItIsAndNoFolders) {
  const Json facts = document_of(input_spec(*two_wide_images(), {}));
  EXPECT_EQ(facts.at("dataset"), "pairs");
  EXPECT_EQ(facts.at("input_size"), (std::vector<int64_t>{3, 8, 12}));
  EXPECT_EQ(facts.at("channel_order"), "rgb");
  EXPECT_EQ(facts.at("classes"), (std::vector<std::string>{"a", "b"}));
  EXPECT_FALSE(facts.contains("size"));
  const auto clusters = open_dataset("clusters-setting1", "test");
  const Json other = document_of(input_spec(*clusters, {}));
  EXPECT_EQ(other.at("images"), false);
  for (const char* key : {"mean", "std", "rescale_factor"}) EXPECT_TRUE(other.at(key).is_null());
  EXPECT_EQ(document_of(read_input_spec(other, "there")), other);
}

TEST(InputSpec, RefusesWhatAStrangerMayHaveWritten) {
  const Json whole = document_of(input_spec(*two_wide_images(), {}));
  const auto refused = [&](const std::string& key, const std::string& value) {
    Json edited = whole;
    edited[key] = Json::parse(value);
    return test::failure_of([&] { read_input_spec(edited, "theirs.json"); });
  };
  const std::vector<std::tuple<const char*, const char*, const char*>> wrong = {
      {"input_size", "[3, 8]", "found 2 numbers"},
      {"input_size", "[3, -8, 12]", "-8"},
      {"input_size", "[3, 1000000, 12]", "16384"},
      {"mean", "[0.1]", "each of 3 channels, found 1"},
      {"mean", "null", "mean"},
      {"std", "[0.1, 0.2, 0]", "std"},
      {"std", "[0.1, 0.2, 1e-300]", "std"},
      {"mean", "[123.7, 116.3, 103.5]", "divide it by 255"},
      {"rescale_factor", "1", "1/255"},
      {"channel_order", "\"gray\"", "rgb"},
      {"channel_order", "\"bgr\"", "bgr"},
      {"central_crop", "1.5", "central_crop"},
      {"interpolation", "\"nearest\"", "bilinear"},
      {"truncate", "true", "truncate"},
      {"classes", "[1]", "classes"},
      {"colour", "1", "colour"}};
  for (const auto& [key, value, message] : wrong) {
    EXPECT_THAT(refused(key, value), AllOf(HasSubstr("theirs.json"), HasSubstr(message))) << key;
  }
  EXPECT_THAT(test::failure_of([] { read_input_spec(Json::array(), "theirs.json"); }),
              HasSubstr("theirs.json"));
}

TEST(InputSpec, OfImagesOfLittleContrastIsReadWithAWarning) {
  Json edited = document_of(input_spec(*two_wide_images(), {}));
  edited["std"] = {0.1, 0.2, 0.0037};
  ::testing::internal::CaptureStderr();
  const InputSpec spec = read_input_spec(edited, "theirs.json");
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(said, HasSubstr("theirs.json: std is of pixels scaled to [0, 1]"));
  EXPECT_EQ(document_of(spec), edited);
}

TEST(InputSpec, OverrulesTheDataAndWarnsOfIt) {
  const auto base = two_wide_images();
  PreprocessConfig way{.size = 6};
  InputSpec spec = input_spec(*preprocessed(base, way), way);
  const auto said = [&](const InputSpec& own) {
    return test::said_by([&] { warn_overridden(own, base->info(), "run"); });
  };
  EXPECT_EQ(said(spec), "");
  way.mean = way.std = {0.25, 0.5, 0.5};
  EXPECT_EQ(said(input_spec(*preprocessed(base, way), way)), "");  // a recipe's own: no surprise
  spec.mean = {0.5, 0.5, 0.5};
  EXPECT_THAT(said(spec), HasSubstr("run: images of 'folder/of/pairs/' get the checkpoint's mean, "
                                    "which differs from the dataset's"));
  spec.dataset = "others";
  EXPECT_THAT(said(spec), HasSubstr("size of images"));
  const auto data = preprocessed(base, spec);
  EXPECT_EQ(data->info().mean, spec.mean);
  EXPECT_EQ(data->info().width, 6);
  EXPECT_THAT(
      test::usage_of([&] { preprocessed(open_dataset("clusters-setting1", "test"), spec); }),
      HasSubstr("inputs other than images"));
}

TEST(DatasetName, WithoutASlashMayBeThatOfAFolderOrADescriptionHere) {
  const test::TempDir folder;
  const auto before = std::filesystem::current_path();
  std::filesystem::current_path(folder.path());
  std::filesystem::create_directory("photos");
  test::put("mine.json", "{}");
  const auto refusal = [](const char* name) {
    return test::usage_of([&] { load_dataset_spec(name); });
  };
  EXPECT_EQ(refusal("photos"), "unknown dataset 'photos'; did you mean 'photos/'?");
  EXPECT_EQ(refusal("mine"), "unknown dataset 'mine'; did you mean 'mine.json'?");
  EXPECT_THAT(refusal("cifar"), HasSubstr("needs a slash in its name"));
  std::filesystem::current_path(before);
}

TEST(AbsoluteName, IsThatOfAPathFromAnywhere) {
  const test::TempDir folder;
  test::put(folder / "mine.json", "{}");
  EXPECT_EQ(absolute_name("cifar10"), "cifar10");
  EXPECT_EQ(absolute_name("no/such/folder"), "no/such/folder");
  const auto before = std::filesystem::current_path();
  std::filesystem::current_path(folder.path());
  std::filesystem::create_directory("images");
  const std::string here = std::filesystem::current_path().string();
  EXPECT_EQ(absolute_name("./images"), here + "/images");
  EXPECT_EQ(absolute_name("./images/"), here + "/images");
  EXPECT_EQ(absolute_name("mine.json"), here + "/mine.json");
  std::filesystem::current_path(before);
}

}  // namespace
}  // namespace moesaic
