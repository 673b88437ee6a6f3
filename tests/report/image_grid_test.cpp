// SPDX-License-Identifier: Apache-2.0
#include "moesaic/report/experiment.h"

#include <fmt/format.h>

#include "moesaic/base/process.h"
#include "moesaic/config/document.h"
#include "report/report_fixture.h"
#include "support/matchers.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;
using report_test::error_of;

std::string samples_text(const std::string& rest) {
  return R"({"name": "tiny", "kind": "image_grid", "description": "A test.", "data": "three",)" +
         rest + "}";
}

ImageGridConfig samples_config(const std::string& rest) {
  return parse<ImageGridConfig>(Document::from_text(samples_text(rest), "tiny.json").root());
}

Experiment samples_experiment(const std::string& rest) {
  return {.name = "tiny",
          .kind = "image_grid",
          .description = "A test.",
          .config = Document::from_text(samples_text(rest), "tiny.json").root()};
}

ReproduceOptions samples_options(const fs::path& out = {}) {
  return {.out = out, .show_progress = false, .open = report_test::open_tiny};
}

TEST(ImageGrid, AreThePixelsOfTheImages) {
  const Figure figure = image_grid_figure(samples_config(R"("images": [1, 0])"), samples_options());
  const auto data = report_test::open_tiny("three", "train");
  std::string wanted;
  for (const int64_t index : {1, 0}) {
    std::vector<uint8_t> bytes(16);
    data->image(index, bytes.data());
    wanted += (wanted.empty() ? "" : "\n\n") + std::string("# x\ty\tred\tgreen\tblue\n");
    for (int p = 0; p < 16; ++p) {
      const int grey = bytes[static_cast<size_t>(p)];
      wanted += fmt::format("{}\t{}\t{}\t{}\t{}\n", p % 4, p / 4, grey, grey, grey);
    }
  }
  EXPECT_EQ(figure.data, wanted);
  EXPECT_THAT(figure.script, HasSubstr("'shade 1'"));
}

TEST(ImageGrid, AreAugmentedBySeed) {
  const auto data = [](const std::string& rest) {
    return image_grid_figure(
               samples_config(R"("images": [0, 1, 2], "augment": {"max_shift": 2})" + rest),
               samples_options())
        .data;
  };
  EXPECT_EQ(data(""), data(R"(, "seed": 1)"));
  EXPECT_NE(data(""), data(R"(, "seed": 2)"));
}

TEST(ImageGrid, RefuseWhatThereIsNot) {
  EXPECT_THAT(error_of([] { samples_config(R"("images": [0], "augment": {"mixup": 0.5})"); }),
              HasSubstr("mixup needs a batch"));
  EXPECT_THAT(
      error_of([] { image_grid_figure(samples_config(R"("images": [48])"), samples_options()); }),
      HasSubstr("'train' of 'three' has 48 images; image 48 does not exist"));
}

TEST(ImageGrid, AreDrawnByReproduce) {
  if (find_program("gnuplot").empty()) GTEST_SKIP() << "needs gnuplot";
  const report_test::TempDir folder;
  const Experiment experiment = samples_experiment(R"("images": [0, 1, 2], "num_columns": 2)");
  const ReproduceOptions options = samples_options(folder / "out");
  reproduce(experiment, options);
  for (const char* name : {"results.json", "report.md", "figure.png", "figure.svg"}) {
    EXPECT_TRUE(fs::exists(folder / "out" / name)) << name;
  }
  reproduce(experiment, options);  // It is this experiment's folder.
}

TEST(ImageGrid, AreDrawnIntoNoFolderOfOthersAndThroughNoLink) {
  if (find_program("gnuplot").empty()) GTEST_SKIP() << "needs gnuplot";
  const report_test::TempDir folder;
  const Experiment experiment = samples_experiment(R"("images": [0])");
  ReproduceOptions options = samples_options(folder / "out");
  fs::create_directory(options.out);
  write_atomic(options.out / "report.md", "my thesis");
  EXPECT_THAT(error_of([&] { reproduce(experiment, options); }),
              HasSubstr("the folder holds something that is not this experiment"));
  EXPECT_EQ(read_text(options.out / "report.md"), "my thesis");
  fs::create_directory(folder / "mine");
  write_atomic(folder / "mine/elapsed.json", "my times");
  options.out = folder / "mine";
  EXPECT_THAT(error_of([&] { reproduce(experiment, options); }),
              HasSubstr("something that is not this experiment"));

  options.out = folder / "links";
  reproduce(experiment, options);
  fs::remove(options.out / "report.md");
  fs::create_symlink("../out/report.md", options.out / "report.md");
  EXPECT_THAT(error_of([&] { reproduce(experiment, options); }),
              HasSubstr("/links/report.md: a link, which is not followed; remove it"));
  EXPECT_EQ(read_text(folder / "out/report.md"), "my thesis");
}

}  // namespace
}  // namespace moesaic
