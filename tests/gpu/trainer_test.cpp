// SPDX-License-Identifier: Apache-2.0
// A whole run on each device: phases, pruning between them, checkpoints, and going on from one.
#include <torch/torch.h>

#include "moesaic/checkpoint/store.h"
#include "moesaic/ops/device.h"
#include "moesaic/train/evaluate.h"
#include "train/train_fixture.h"

namespace moesaic {
namespace {

using namespace train_test;  // NOLINT(google-build-using-namespace): the fixture of this folder

class TrainerOnDevice : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (GetParam() != std::string("cuda")) return;
    if (!torch::cuda::is_available()) GTEST_SKIP() << "no GPU that LibTorch can use";
    if (!has_cuda_operators()) GTEST_SKIP() << "built without operators for a GPU";
  }

  TrainResult train_here(const fs::path& out, bool resume = false) const {
    TrainerOptions options = options_for(out, resume);
    options.device = GetParam();
    return Trainer(config_of(four_phases()), options).run();
  }

  TempDir folder_;
};

TEST_P(TrainerOnDevice, PrunesBetweenPhases) {
  const TrainResult result = train_here(folder_ / "run");
  EXPECT_EQ(result.steps, 12);
  ASSERT_TRUE(result.evaluation);
  const fs::path checkpoints = folder_ / "run/checkpoints";
  const auto pretrained = load_model(checkpoints / "pretrain"),
             finetuned = load_model(checkpoints / "finetune"),
             pruned = load_model(checkpoints / "prune"),
             recovered = load_model(checkpoints / "recover");
  EXPECT_EQ(pretrained->num_classes(), 3);
  EXPECT_EQ(pruned->num_classes(), 2);
  EXPECT_EQ(pretrained->moe_blocks()[0].layer->kept().size(), 4u);
  EXPECT_EQ(pruned->moe_blocks()[0].layer->kept().size(), 2u);
  EXPECT_EQ(recovered->moe_blocks()[0].layer->kept(), pruned->moe_blocks()[0].layer->kept());
  const at::Tensor before = finetuned->named_parameters()["blocks.1.moe.experts.w1"];
  const at::Tensor kept =
      before.index_select(0, torch::tensor(pruned->moe_blocks()[0].layer->kept(), torch::kLong));
  EXPECT_TRUE(torch::equal(pruned->named_parameters()["blocks.1.moe.experts.w1"], kept));
  EXPECT_FALSE(torch::equal(recovered->named_parameters()["blocks.1.moe.experts.w1"], kept));
}

TEST_P(TrainerOnDevice, ItsCheckpointsAreCompleteAndBelongToNoDevice) {
  const TrainResult result = train_here(folder_ / "run");
  for (const auto& entry : fs::directory_iterator(folder_ / "run/checkpoints")) {
    load_checkpoint(entry.path());
  }
  // The network of the last evaluation, on the CPU.
  const Evaluation here = evaluate(*load_model(result.checkpoint), open_tiny("two", "test"));
  EXPECT_NEAR(here.metric("loss"), result.evaluation->metric("loss"), 1e-4);
}

TEST_P(TrainerOnDevice, GoesOnWithTheSameBitsFromEveryKindOfPhase) {
  train_here(folder_ / "run");
  train_here(folder_ / "again");
  expect_equal_bits(folder_ / "run", folder_ / "again");
  for (const int64_t step : {0, 3, 6, 8, 9, 11}) {
    SCOPED_TRACE(step);
    TempDir other;
    copy_killed_after(folder_ / "run", step, other / "run");
    EXPECT_EQ(train_here(other / "run", true).steps, 12);
    expect_equal_bits(folder_ / "run", other / "run");
  }
}

INSTANTIATE_TEST_SUITE_P(Cpu, TrainerOnDevice, ::testing::Values("cpu"));
INSTANTIATE_TEST_SUITE_P(Cuda, TrainerOnDevice, ::testing::Values("cuda"));

}  // namespace
}  // namespace moesaic
