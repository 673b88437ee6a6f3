// SPDX-License-Identifier: Apache-2.0

#include <torch/torch.h>

#include "moesaic/checkpoint/inspect.h"
#include "moesaic/prune/prune_checkpoint.h"
#include "moesaic/train/evaluate.h"
#include "moesaic/train/run_plan.h"
#include "support/matchers.h"
#include "support/tensors.h"
#include "train/train_fixture.h"

namespace moesaic {
namespace {

using train_test::config_of;
using train_test::error_of;
using train_test::four_phases;

/// Flips a bit of the file, whose size stays.
void flip_last_bit(const std::filesystem::path& file) {
  std::string bytes = test::get(file);
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  test::put(file, bytes);
}

TEST(RunStart, OptimizerStateIsReadByNothingButResuming) {
  const test::TempDir folder;
  train_test::train(folder / "run");
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder.path())) {
    if (entry.path().filename() == "optimizer.safetensors") flip_last_bit(entry.path());
  }
  const std::filesystem::path from = folder / "run/checkpoints/pretrain";
  ASSERT_THAT(error_of([&] { load_checkpoint(from); }), HasSubstr("altered"));

  ::testing::internal::CaptureStderr();
  EXPECT_EQ(inspect(folder / "run")["state"]["step"], 12);
  EXPECT_TRUE(inspect_difference(folder / "run", folder / "run")["changed"].empty());
  EXPECT_NO_THROW(
      evaluate_checkpoint({.checkpoint = folder / "run", .open = train_test::open_tiny}));
  EXPECT_NO_THROW(prune_checkpoint({.finetuned = folder / "run/checkpoints/finetune",
                                    .pretrained = from,
                                    .out = folder / "pruned",
                                    .prune = {.keep = KeepSpec::fraction(0.5)}}));

  const std::string run = (folder / "run").string();
  const RunConfig config = config_of(
      four_phases(),
      {"model=null", "init=" + from.string(), "phases.prune.on_entry.prune.pretrained=" + run});
  EXPECT_NO_THROW(check_initial_weights(config, *build_initial_meta_model(config)));
  const RunStart start(config);
  DatasetCache datasets(train_test::open_tiny);
  EXPECT_EQ(plan_phases(config, *start.shape(), datasets).size(), 4U);
  expect_equal_tensors(state_of(*start.model()),
                       load_checkpoint(from, {.load_optimizer = false}).model);
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), Not(HasSubstr("is skipped")));
}

TEST(RunStart, APlanNeedsNoWeightsOfAPretrainedNetwork) {
  const test::TempDir folder;
  train_test::train(folder / "run");
  const std::filesystem::path pretrained = folder / "run/checkpoints/pretrain";
  flip_last_bit(pretrained / "model.safetensors");
  const RunConfig config =
      config_of(four_phases(), {"phases.prune.on_entry.prune.pretrained=" + pretrained.string()});
  DatasetCache datasets(train_test::open_tiny);
  const auto plan = [&] { plan_phases(config, *build_initial_meta_model(config), datasets); };
  EXPECT_EQ(error_of(plan), "no error");
  test::put(pretrained / "model.safetensors", "short");
  EXPECT_THAT(error_of(plan), HasSubstr("model.safetensors: the file has 5 bytes"));
}

TEST(RunStart, PlansThePrunedNetworkOfInit) {
  const test::TempDir folder;
  train_test::train(folder / "run", {"phases.finetune.loss=sigmoid"});
  const PruneCheckpointResult pruned =
      prune_checkpoint({.finetuned = folder / "run/checkpoints/finetune",
                        .out = folder / "pruned",
                        .prune = {.criterion = "magnitude", .keep = KeepSpec::count(2)}});
  EXPECT_EQ(trained_loss(load_checkpoint(folder / "pruned")), "sigmoid");
  const RunConfig config =
      config_of(four_phases(), {"model=null", "init=" + (folder / "pruned").string()});
  const std::string plan = describe_run(config, *build_initial_meta_model(config), {});
  EXPECT_THAT(plan, HasSubstr(fmt::format("FLOPs/image   {:.4g}\n", pruned.after.flops)));
  EXPECT_LT(pruned.after.flops, pruned.before.flops);
}

// Its weights are not those of its configuration, which is how it fits on this disk.
TEST(RunStart, MemoryIsCheckedWithTheNetworkOfACheckpointToo) {
  const test::TempDir folder;
  const std::vector<std::string> huge = {"model.encoder.mlp_dim=1048576",
                                         "model.encoder.moe.num_experts=65536"};
  save_checkpoint(folder / "huge",
                  {.config = {{"model", config_of(four_phases(), huge).model.to_json()}},
                   .state = {{"step", 0}},
                   .model = {{"cls", at::zeros({1, 1, 8})}},
                   .optimizer = {}});
  const std::string init = "init=" + (folder / "huge").string();
  EXPECT_THAT(error_of([&] {
                RunStart(config_of(four_phases(), {"model=null", init})).model();
              }),
              AllOf(StartsWith("usage: " + (folder / "huge/config.json").string()),
                    HasSubstr("training a model of"), HasSubstr("of memory")));

  const std::string untrained = R"({"name": "still", "phases": [
      {"name": "only", "data": "three", "steps": 0}]})";
  RunConfig config = config_of(untrained, {init});
  config.model = config_of(four_phases(), huge).model;
  EXPECT_THAT(error_of([&] { RunStart(config).model(); }),
              HasSubstr("beside the weights of init needs"));
}

}  // namespace
}  // namespace moesaic
