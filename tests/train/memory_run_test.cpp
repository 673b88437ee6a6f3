// SPDX-License-Identifier: Apache-2.0
// Runs without a folder: the same Trainer, the same bits, and nothing written.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "moesaic/checkpoint/store.h"
#include "support/tensors.h"
#include "train/train_fixture.h"

namespace moesaic {
namespace {

using namespace train_test;  // NOLINT(google-build-using-namespace): the fixture of this folder

const std::vector<std::string> kTwoPhases = {
    "phases=[{\"name\": \"first\", \"data\": \"three\", \"batch_size\": 4, \"steps\": 6},"
    "{\"name\": \"second\", \"data\": \"two\", \"batch_size\": 4, \"steps\": 3, "
    "\"on_entry\": {\"new_head\": true, \"prune\": {\"keep\": 2, \"criterion\": \"magnitude\"}}}]"};

TEST(MemoryRun, HasTheBitsOfARunWithAFolder) {
  const TempDir folder;
  train(folder / "run", kTwoPhases);
  Trainer trainer(config_of(four_phases(), kTwoPhases), options_for(""));
  const TrainResult result = trainer.run();
  EXPECT_TRUE(result.is_complete);
  EXPECT_EQ(result.steps, 9);
  EXPECT_FALSE(result.evaluation);
  EXPECT_TRUE(result.checkpoint.empty());
  expect_equal_tensors(state_of(*trainer.model()), state_of(*load_model(folder / "run")));
}

TEST(MemoryRun, IsWatchedBeforeEachStepAndAfterTheLast) {
  std::vector<int64_t> seen;
  TrainerOptions options = options_for("");
  options.on_step = [&](Model& model, int64_t step) {
    seen.push_back(step);
    EXPECT_EQ(model.num_classes(), step < 6 ? 3 : 2);
    return true;
  };
  Trainer(config_of(four_phases(), kTwoPhases), options).run();
  EXPECT_EQ(seen, (std::vector<int64_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}));
}

TEST(MemoryRun, EndsWhereTheWatcherSaysSo) {
  TrainerOptions options = options_for("");
  options.on_step = [](Model&, int64_t step) { return step < 4; };
  const TrainResult result = Trainer(config_of(four_phases(), kTwoPhases), options).run();
  EXPECT_FALSE(result.is_complete);
  EXPECT_EQ(result.steps, 4);
  EXPECT_EQ(result.signal, 0);
}

}  // namespace
}  // namespace moesaic
