// SPDX-License-Identifier: Apache-2.0
#include <torch/torch.h>

#include "base/support.h"
#include "moesaic/base/file.h"
#include "moesaic/formats/image.h"
#include "moesaic/report/evaluation_figures.h"
#include "support/decoded_image.h"
#include "support/matchers.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;

/// Six grey images of 2 x 3 pixels, image i of brightness 10 i, with two classes in turn.
CheckpointEvaluation six(const std::vector<int64_t>& predicted,
                         const std::vector<float>& confidence) {
  CheckpointEvaluation result;
  result.classes = {"cat, tabby", "dog"};
  DatasetInfo info{"pets", "test", "", result.classes, 1, 2, 3, {0.5}, {0.5}};
  std::vector<uint8_t> pixels, labels;
  for (int i = 0; i < 6; ++i) {
    pixels.insert(pixels.end(), 6, static_cast<uint8_t>(10 * i));
    labels.push_back(static_cast<uint8_t>(i % 2));
  }
  result.dataset = make_memory_dataset(info, pixels, labels);
  result.evaluation.predictions = {torch::tensor({0, 1, 0, 1, 0, 1}, torch::kLong),
                                   torch::tensor(predicted, torch::kLong),
                                   torch::tensor(confidence, torch::kFloat)};
  return result;
}

TEST(Mistakes, AreDrawnByFallingConfidenceWithATableBeside) {
  const test::TempDir folder;
  const fs::path file = folder / "sheet.png";
  check_new_mistakes(file);
  const CheckpointEvaluation result =
      six({1, 1, 1, 0, 0, 0}, {0.5F, 0.99F, 0.75F, 0.875F, 0.9F, 0.5F});
  EXPECT_EQ(write_mistakes(result, 3, file), 3);
  EXPECT_EQ(read_text(folder / "sheet.csv"),
            "file,index,label,prediction,confidence\n"
            ",3,dog,\"cat, tabby\",0.8750\n"
            ",2,\"cat, tabby\",dog,0.7500\n"
            ",0,\"cat, tabby\",dog,0.5000\n");
  const test::RgbImage sheet = test::decode_image(read_text(file));
  // Two columns and rows with gaps of two pixels; what is empty is white.
  ASSERT_EQ(sheet.height, 6);
  ASSERT_EQ(sheet.width, 8);
  const auto grey = [&](int64_t y, int64_t x) {
    return static_cast<int>(sheet.pixels[static_cast<size_t>(3 * (y * 8 + x))]);
  };
  EXPECT_EQ(grey(0, 0), 30);
  EXPECT_EQ(grey(1, 2), 30);
  EXPECT_EQ(grey(0, 3), 255);
  EXPECT_EQ(grey(0, 5), 20);
  EXPECT_EQ(grey(4, 0), 0);
  EXPECT_EQ(grey(5, 7), 255);
  EXPECT_THAT(test::usage_of([&] { check_new_mistakes(file); }), HasSubstr("already exists"));
}

TEST(Mistakes, WriteNothingWhereThereAreNone) {
  const test::TempDir folder;
  EXPECT_EQ(write_mistakes(six({0, 1, 0, 1, 0, 1}, std::vector<float>(6, 0.9F)), 64,
                           folder / "sheet.png"),
            0);
  EXPECT_THAT(folder.names(), IsEmpty());
}

TEST(Mistakes, AreOfImagesAndHaveTheNameOfAPng) {
  const test::TempDir folder;
  EXPECT_THAT(test::usage_of([&] { check_new_mistakes(folder / "sheet.jpg"); }),
              HasSubstr("must end in .png, found"));
  test::put(folder / "sheet.csv", "");
  EXPECT_THAT(test::usage_of([&] { check_new_mistakes(folder / "sheet.png"); }),
              AllOf(HasSubstr("sheet.csv"), HasSubstr("already exists")));
  DatasetInfo info = six({0, 0, 0, 0, 0, 0}, std::vector<float>(6, 0.5F)).dataset->info();
  check_can_show_mistakes(info);
  info.channels = 2;
  EXPECT_THAT(test::usage_of([&] { check_can_show_mistakes(info); }),
              HasSubstr("the inputs of 'pets' are not images of classes"));
  info.channels = 3;
  info.has_images = false;
  EXPECT_THAT(test::usage_of([&] { check_can_show_mistakes(info); }), HasSubstr("leave it out"));
}

}  // namespace
}  // namespace moesaic
