// SPDX-License-Identifier: Apache-2.0
// What `moesaic export` writes is taken where a checkpoint is.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/support.h"
#include "export/toy_info.h"
#include "moesaic/checkpoint/inspect.h"
#include "moesaic/export/safetensors.h"
#include "moesaic/export/torchscript.h"
#include "moesaic/prune/prune_checkpoint.h"
#include "moesaic/train/evaluate_checkpoint.h"
#include "prune/small_vmoe.h"

namespace moesaic {
namespace {

using ::testing::HasSubstr;
using testing::small_vmoe;

class Exported : public ::testing::TestWithParam<const char*> {
 protected:
  Exported() {
    ExportInfo info = testing::toy_info();
    info.loss = "sigmoid";
    info.batch_size = 12;
    model_->moe_blocks()[1].layer->keep_experts({0, 4});
    export_safetensors(*model_, folder_ / GetParam(), info);
  }

  const test::TempDir folder_;
  const std::shared_ptr<VMoE> model_ = small_vmoe();
  const std::filesystem::path path_ = folder_ / GetParam();
};

TEST_P(Exported, IsACheckpointWithItsInputLossAndBatchSize) {
  const Checkpoint checkpoint = load_newest_checkpoint(path_);
  const auto model = model_of(checkpoint);
  EXPECT_EQ(model->config(), model_->config());
  const InputSpec input = input_spec_of(checkpoint, *model);
  EXPECT_EQ(document_of(input), document_of(testing::toy_info().input));
  EXPECT_EQ(trained_loss(checkpoint), "sigmoid");
  EXPECT_EQ(trained_batch_size(checkpoint), 12);
  EXPECT_EQ(checkpoint.config.at("data"), "toys");
}

TEST_P(Exported, IsPruned) {
  PruneCheckpointOptions options;
  options.finetuned = path_;
  options.out = folder_ / "pruned";
  options.criterion = "magnitude";
  options.keep = KeepSpec::count(2);
  prune_checkpoint(options);
  const Checkpoint pruned = load_newest_checkpoint(options.out);
  EXPECT_EQ(input_spec_of(pruned, *model_of(pruned)).mean, std::vector<double>{0.5});
  EXPECT_EQ(trained_loss(pruned), "sigmoid");
}

TEST_P(Exported, IsInspected) {
  const auto found = inspect(path_);
  EXPECT_EQ(found.at("kind"), std::string(GetParam()) == "folder" ? "export" : "safetensors");
  EXPECT_EQ(found.at("moe")[1].at("kept"), (std::vector<int64_t>{0, 4}));
  EXPECT_EQ(found.at("classes").size(), 5U);
  EXPECT_EQ(found.at("parameters"), model_->parameter_count());
  EXPECT_TRUE(inspect_difference(path_, path_).at("changed").empty());
}

INSTANTIATE_TEST_SUITE_P(Forms, Exported, ::testing::Values("folder", "one.safetensors"));

TEST(ExportedByAnOlderVersion, IsCompletedWithAWarning) {
  const test::TempDir folder;
  const auto model = small_vmoe();
  export_safetensors(*model, folder / "out", testing::toy_info());
  std::filesystem::remove(folder / "out/evaluation.json");
  test::put(folder / "out/preprocess.json",
            R"({"dataset": "toys", "input_size": [1, 8, 8], "rescale_factor": 0.00392156862745098,
                "mean": [0.5], "std": [0.25]})");
  ::testing::internal::CaptureStderr();
  const Checkpoint checkpoint = load_newest_checkpoint(folder / "out");
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("older version"));
  const InputSpec input = input_spec_of(checkpoint, *model);
  EXPECT_EQ(document_of(input), document_of(testing::toy_info().input));
  EXPECT_EQ(trained_loss(checkpoint), "");
}

TEST(ExportedTorchScript, IsInspectedByItsFactsAndRefusedElsewhere) {
  const test::TempDir folder;
  const auto model = small_vmoe();
  const auto file = folder / "model.ts.pt";
  export_torchscript(*model, file, testing::toy_info());
  const auto found = inspect(file);
  EXPECT_EQ(found.at("kind"), "torchscript");
  EXPECT_EQ(found.at("parameters"), model->parameter_count());
  EXPECT_EQ(found.at("tensors").size(), state_of(*model).size());
  EXPECT_EQ(found.at("input").at("dataset"), "toys");
  EXPECT_THAT(test::usage_of([&] { load_newest_checkpoint(file); }), HasSubstr("TorchScript"));
  EXPECT_THAT(test::usage_of([&] { inspect_difference(file, file); }), HasSubstr("TorchScript"));
  test::put(folder / "cut.pt", test::get(file).substr(0, 1000));
  EXPECT_THAT(test::failure_of([&] { inspect(folder / "cut.pt"); }), HasSubstr("damaged"));
}

TEST(NotExported, ACheckpointWithoutItsManifestIsNone) {
  const test::TempDir folder;
  const auto model = small_vmoe();
  save_checkpoint(folder / "it", {.config = {{"model", model->config()}},
                                  .state = {{"step", 1}},
                                  .model = state_of(*model),
                                  .optimizer = {}});
  std::filesystem::remove(folder / "it/MANIFEST.json");
  EXPECT_THAT(test::usage_of([&] { load_newest_checkpoint(folder / "it"); }),
              HasSubstr("neither a checkpoint"));
}

}  // namespace
}  // namespace moesaic
