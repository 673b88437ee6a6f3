// SPDX-License-Identifier: Apache-2.0
#include "moesaic/prune/prune_checkpoint.h"

#include <gmock/gmock.h>

#include "base/support.h"
#include "moesaic/checkpoint/store.h"
#include "prune/small_vmoe.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::run;
using testing::small_images;
using testing::small_vmoe;
using testing::small_vmoe_config;

void save(const fs::path& folder, const Model& model) {
  Checkpoint checkpoint;
  checkpoint.config = {{"model", model.config()},
                       {"data", "fashion-mnist"},
                       {"classes", {"a", "b", "c", "d", "e"}},
                       {"run", nullptr}};
  checkpoint.state = {{"step", 12}};
  checkpoint.model = state_of(model);
  checkpoint.optimizer = {{"head.weight.momentum", torch::ones({5, 12})}};
  save_checkpoint(folder, checkpoint);
}

class PruneCheckpoint : public ::testing::Test {
 protected:
  PruneCheckpoint() {
    save(folder_ / "pretrained", *small_vmoe(small_vmoe_config(), 1));
    save(folder_ / "finetuned", *small_vmoe(small_vmoe_config(), 50));
    options_.pretrained = folder_ / "pretrained";
    options_.finetuned = folder_ / "finetuned";
    options_.out = folder_ / "out";
    options_.keep = KeepSpec::count(2);
  }

  const test::TempDir folder_;
  PruneCheckpointOptions options_;
};

TEST_F(PruneCheckpoint, WritesASmallerNetworkThatLoads) {
  const PruneCheckpointResult result = prune_checkpoint(options_);
  const auto before = load_model(options_.finetuned), pretrained = load_model(options_.pretrained);
  const PrunePlan plan =
      plan_pruning(*before, pretrained.get(), "router-norm-change", KeepSpec::count(2));
  EXPECT_EQ(to_json(result.plan), to_json(plan));
  apply_plan(*before, plan);

  const auto after = load_model(options_.out);
  const at::Tensor images = small_images(3);
  EXPECT_TRUE(at::equal(run(*after, images).logits, run(*before, images).logits));
  EXPECT_EQ(after->config()["encoder"]["moe"]["kept_experts"]["1"], plan.layers[0].kept);
  EXPECT_LT(fs::file_size(options_.out / "model.safetensors"),
            fs::file_size(options_.finetuned / "model.safetensors"));
}

TEST_F(PruneCheckpoint, KeepsTheFactsAndDropsTheOptimizer) {
  const PruneCheckpointResult result = prune_checkpoint(options_);
  const Checkpoint checkpoint = load_checkpoint(options_.out);
  EXPECT_TRUE(checkpoint.optimizer.empty());
  EXPECT_EQ(checkpoint.config["data"], "fashion-mnist");
  EXPECT_EQ(checkpoint.config["classes"].size(), 5U);
  EXPECT_EQ(checkpoint.state["pruned"], to_json(result.plan));
}

TEST_F(PruneCheckpoint, CostsFall) {
  const PruneCheckpointResult result = prune_checkpoint(options_);
  // 2 layers lose 4 experts of (12 * 20 + 20) + (20 * 12 + 12) numbers each.
  EXPECT_EQ(result.before.parameters - result.after.parameters, 2 * 4 * 512);
  EXPECT_EQ(result.before.bytes - result.after.bytes, 2 * 4 * 512 * 4);
  EXPECT_EQ(result.before.bytes, result.before.parameters * 4);
  // Of 17 tokens' 2 choices, 4 of 6 go to experts that are not there, 2 products of 12 x 20 each.
  EXPECT_NEAR(result.before.flops - result.after.flops, 2 * 2 * 17 * (2 * 4.0 / 6) * 2 * 12 * 20,
              1e-6);
  const std::string table = describe(result);
  EXPECT_THAT(table, AllOf(HasSubstr("2 of 6"), HasSubstr("parameters"), HasSubstr("bytes"),
                           HasSubstr("MFLOPs"), HasSubstr("->")));
}

TEST_F(PruneCheckpoint, NeedsThePretrainedNetworkForItsChangeOnly) {
  options_.pretrained.clear();
  EXPECT_THAT(test::usage_of([&] { prune_checkpoint(options_); }), HasSubstr("--pretrained"));
  EXPECT_FALSE(fs::exists(options_.out));
  options_.criterion = "magnitude";
  prune_checkpoint(options_);
  EXPECT_TRUE(fs::exists(options_.out / "MANIFEST.json"));
}

TEST_F(PruneCheckpoint, RefusesAPretrainedNetworkOfAnotherKind) {
  VMoEConfig config = small_vmoe_config();
  config.channels = 3;
  options_.pretrained = folder_ / "other";
  save(options_.pretrained, *small_vmoe(config, 1));
  EXPECT_THAT(test::usage_of([&] { prune_checkpoint(options_); }),
              AllOf(HasSubstr("another network"), HasSubstr("embedding.weight")));
  EXPECT_FALSE(fs::exists(options_.out));
}

TEST_F(PruneCheckpoint, OverwritesNothing) {
  fs::create_directory(options_.out);
  prune_checkpoint(options_);  // an empty folder is fine
  const std::string config = test::get(options_.out / "config.json");
  EXPECT_THAT(test::usage_of([&] { prune_checkpoint(options_); }), HasSubstr("is there already"));
  EXPECT_EQ(test::get(options_.out / "config.json"), config);
  options_.out = folder_ / "file";
  test::put(options_.out, "mine");
  EXPECT_THAT(test::usage_of([&] { prune_checkpoint(options_); }), HasSubstr("is there already"));
  EXPECT_EQ(test::get(options_.out), "mine");
}

TEST_F(PruneCheckpoint, AnErrorLeavesNothing) {
  options_.keep = KeepSpec::count(1);
  test::usage_of([&] { prune_checkpoint(options_); });
  options_.keep = KeepSpec::count(2);
  options_.criterion = "randm";
  EXPECT_THAT(test::usage_of([&] { prune_checkpoint(options_); }), HasSubstr("'random'"));
  options_.criterion = "random";
  options_.finetuned = folder_ / "nowhere";
  test::usage_of([&] { prune_checkpoint(options_); });
  EXPECT_EQ(folder_.names(), (std::vector<std::string>{"finetuned", "pretrained"}));
}

TEST(PruneCheckpointTies, AreWorthAWarning) {
  const test::TempDir folder;
  save(folder / "same", *small_vmoe());
  PruneCheckpointOptions options;
  options.pretrained = options.finetuned = folder / "same";
  options.out = folder / "out";
  options.keep = KeepSpec::count(2);
  ::testing::internal::CaptureStderr();
  prune_checkpoint(options);
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              AllOf(HasSubstr("warning: "), HasSubstr("the same network?")));
}

}  // namespace
}  // namespace moesaic
