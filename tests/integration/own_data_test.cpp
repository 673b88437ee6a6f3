// SPDX-License-Identifier: Apache-2.0
// Folders and descriptions as users have them, from the command line.
#include <fmt/format.h>

#include "data/png_bytes.h"
#include "integration/program.h"
#include "moesaic/base/process.h"
#include "support/matchers.h"

namespace moesaic::testing {
namespace {

namespace fs = std::filesystem;

/// A folder "photos" of images of 4 x 4 pixels: train, valid and test with cats and dogs.
class OwnData : public ProgramTest {
 protected:
  OwnData() {
    for (const char* split : {"train", "valid", "test"}) fill(split, 4);
  }

  void fill(const std::string& split, int count) const {
    for (int i = 0; i < 2 * count; ++i) {
      const auto bright = static_cast<uint8_t>(100 * (i % 2) + i);
      test::write_file(
          path(fmt::format("photos/{}/{}/{}.png", split, i % 2 == 0 ? "cat" : "dog", i)),
          test::plain_png_bytes(4, 4, {bright, bright, bright}));
    }
  }
  /// A recipe of `model` whose phase has `settings`.
  void write_recipe(const std::string& model, const std::string& settings) const {
    write("recipe.json", fmt::format(R"({{"name": "own", "model": {},
        "phases": [{{"name": "train", "preprocess": {{"size": 4}}, {},
                     "optimizer": {{"name": "sgd", "lr": 0.01}}}}]}})",
                                     model, settings));
  }
};

constexpr const char* kViT = R"({"name": "vmoe", "image_size": 4, "channels": 3, "patch_size": 2,
    "hidden_size": 8, "num_classes": 2, "encoder": {"num_layers": 1, "num_heads": 2, "mlp_dim": 8,
      "moe": {"layers": [0], "num_experts": 2, "router": {"num_selected_experts": 1}}}})";
constexpr const char* kConvolutions = R"({"name": "wrn-pmoe", "image_size": 4, "channels": 3,
    "num_classes": 2, "widen_factor": 0.5, "moe": {"num_experts": 2, "router": {"num_selected_patches": 1}}})";

TEST_F(OwnData, AFolderValidIsTheValidationSplit) {
  write_recipe(kViT, R"("data": "./photos", "batch_size": 4, "steps": 2)");
  fs::create_directories(path("photos/labels"));
  const auto trained = must_succeed(run_here("train recipe.json --out run"));
  EXPECT_THAT(trained.err,
              AllOf(HasSubstr("trains on 'train', tests on 'test', validates on 'valid'; left out: "
                              "'labels'"),
                    HasSubstr("step 2: validation accuracy")));
}

TEST_F(OwnData, ClassesAloneAreTrainedOnWithAPartHeldOut) {
  fs::rename(path("photos/train"), path("flat"));
  write("flat.json", R"({"name": "flat", "format": "image_folder", "paths": ["flat"],
                         "validation": 0.25})");
  write_recipe(kViT, R"("data": "flat.json", "batch_size": 4, "steps": 2)");
  const auto trained = must_succeed(run_here("train recipe.json --out run"));
  EXPECT_THAT(trained.err, AllOf(HasSubstr("validates on the last 25 % of each class"),
                                 HasSubstr("step 2: validation accuracy")));
  must_succeed(run_here("eval run --split validation"));
  const auto bare = must_succeed(run_here("data verify ./flat"));
  EXPECT_THAT(bare.err, HasSubstr("validates on the last 10 % of each class"));
  const auto all = run_here("eval run --data flat/");
  EXPECT_THAT(all.err, HasSubstr("its train+validation split is measured"));
  EXPECT_THAT(all.out, HasSubstr("flat/, 8 train+validation images"));

  fs::rename(path("flat"), path("photos/train"));
  fs::remove_all(path("photos/valid"));
  fill("train", 10);
  write_recipe(kViT, R"("data": "photos/", "batch_size": 4, "steps": 2)");
  const auto tested = run_here("train recipe.json --out tested");
  EXPECT_THAT(tested.err, AllOf(HasSubstr("tests on 'test', validates on the last 10 % of each"),
                                HasSubstr("step 2: validation accuracy")));
  EXPECT_THAT(run_here("eval tested").out, HasSubstr("/photos, 8 test images"));
  EXPECT_THAT(run_here("eval tested --data photos/").out, HasSubstr("photos/, 8 test images"));
}

TEST_F(OwnData, WhatIsPrunedOrExportedLiesElsewhereToo) {
  write_recipe(kViT, R"("data": "./photos", "batch_size": 4, "steps": 1)");
  must_succeed(run_here("train recipe.json --out run"));
  for (const char* command :
       {"prune run --keep 1 --criterion router-magnitude --out photos/train/c",
        "export run --format safetensors --out photos/train/cat/c"}) {
    const auto result = run_here(command);
    EXPECT_EQ(result.exit_code, 2) << command << ": " << result.err;
    EXPECT_THAT(result.err, HasSubstr("images of dataset '")) << command;
  }
  must_succeed(run_here("prune run --keep 1 --criterion router-magnitude --dry-run"));
}

TEST_F(OwnData, NothingIsWrittenAmongItsImages) {
  write_recipe(kViT, R"("data": "./photos", "batch_size": 4, "steps": 1)");
  must_succeed(run_here("train recipe.json --out photos/run"));
  for (const char* command :
       {"train recipe.json --out photos/train/c", "train recipe.json --out photos/test/c --dry-run",
        "eval photos/run --confusion photos/test/cat/c.csv",
        "data pack ./photos --shards 1 --out photos/valid/c"}) {
    const auto result = run_here(command);
    EXPECT_EQ(result.exit_code, 2) << command << ": " << result.err;
    EXPECT_THAT(result.err, HasSubstr("images of dataset '")) << command;
  }
  EXPECT_FALSE(fs::exists(path("photos/train/c")));
}

TEST_F(OwnData, ADescriptionNeedsNoSlash) {
  write("mine.json", R"({"name": "mine", "format": "image_folder", "paths": ["./photos"]})");
  write_recipe(kViT, R"("data": "mine.json", "batch_size": 4, "steps": 2)");
  for (const char* command : {"data verify mine.json", "data verify ./mine.json",
                              "train recipe.json --dry-run", "data pack mine.json --shards 1"}) {
    must_succeed(run_here(command));
  }
  EXPECT_TRUE(fs::exists(path("mine-shards/mine-shards.json")));
  must_succeed(run_here("data verify ./mine-shards"));
}

TEST_F(OwnData, FoldersOfAnyNameArePacked) {
  fs::rename(path("photos"), path("my photos"));
  must_succeed(run_here("data pack './my photos/' --shards 1"));
  EXPECT_TRUE(fs::exists(path("my-photos-shards/my-photos-shards.json")));
  must_succeed(run_command(
      {"sh", "-c",
       fmt::format("cd {} && {} data pack ./ --shards 1", shell_quoted(text_path("my photos")),
                   shell_quoted(MOESAIC_PROGRAM))}));
}

TEST_F(OwnData, NamesCommandNoTerminal) {
  write("photos/train/cat/\x1b[2Jx.png", "no image");
  const auto verified = run_here("data verify ./photos");
  EXPECT_EQ(verified.exit_code, 1);
  EXPECT_THAT(verified.out + verified.err,
              AllOf(HasSubstr("\\x1b[2Jx.png"), Not(HasSubstr("\x1b"))));
}

TEST_F(OwnData, BatchNormalisationOfOneValueIsFoundBeforeTraining) {
  const auto dry_run = [&](const std::string& settings) {
    write_recipe(kConvolutions, R"("data": "./photos", "steps": 2, )" + settings);
    return run_here("train recipe.json --dry-run");
  };
  const auto one = dry_run(R"("batch_size": 1)");
  EXPECT_EQ(one.exit_code, 2) << one.err;
  EXPECT_THAT(one.err, AllOf(HasSubstr("recipe.json:"), HasSubstr("phase 'train': batch norm"),
                             HasSubstr("batches need two images or more")));
  EXPECT_THAT(dry_run(R"("batch_size": 4, "gradient_accumulation_steps": 4)").err,
              HasSubstr("micro-batches need two images or more"));
  must_succeed(dry_run(R"("batch_size": 4, "gradient_accumulation_steps": 2)"));
}

}  // namespace
}  // namespace moesaic::testing
