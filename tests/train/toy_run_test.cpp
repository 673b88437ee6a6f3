// SPDX-License-Identifier: Apache-2.0
// A family and a kind of phase from outside of the library are planned, trained, resumed, evaluated
// and pruned like the library's own, without an edit in src/.
#include <torch/torch.h>

#include "moesaic/checkpoint/store.h"
#include "moesaic/prune/prune_checkpoint.h"
#include "moesaic/train/evaluate.h"
#include "support/matchers.h"
#include "support/toy_family.h"
#include "support/toy_phase.h"
#include "train/train_fixture.h"

namespace moesaic {
namespace {

using namespace train_test;  // NOLINT(google-build-using-namespace): the fixture of this folder

std::string toy_run() {
  return R"({"name": "toy-run", "seed": 5, "log_every": 2, "checkpoint_every": 1,
             "num_checkpoints": 100, "evaluate_batch_size": 4, "num_loader_threads": 0,
             "model": {"name": "toy", "image_size": 4, "noise": 1.0},
             "phases": [
               {"name": "learn", "data": "three", "batch_size": 6, "steps": 5,
                "optimizer": {"lr": 0.01}, "aux_losses": {"importance": 0.01, "load": 0.01}},
               {"name": "small", "kind": "shrink", "data": "three", "steps": 10, "rate": 0.01,
                "trainable": ["embedding"]},
               {"name": "cut", "data": "two", "batch_size": 6, "steps": 2,
                "on_entry": {"new_head": true, "prune": {"keep": 2, "pretrained": "learn"}}}]})";
}

class ToyRun : public ::testing::Test {
 protected:
  ToyRun() {
    testing::add_toy_family();
    testing::add_shrink_phase();
  }

  TrainResult train_toy(const fs::path& out, bool resume = false) const {
    return Trainer(config_of(toy_run()), options_for(out, resume)).run();
  }
  static std::string refusal(const std::string& change) {
    return error_of([&] { Trainer(config_of(toy_run(), {change}), options_for("")); });
  }

  const TempDir folder_;
};

TEST_F(ToyRun, GoesThroughItsPhases) {
  const TrainResult result = train_toy(folder_ / "run");
  EXPECT_EQ(result.steps, 17);
  ASSERT_TRUE(result.evaluation);
  EXPECT_EQ(result.evaluation->routing.at(0).kept.size(), 2U);
  const auto learned = load_model(folder_ / "run/checkpoints/learn")->named_parameters();
  const auto shrunk = load_model(folder_ / "run/checkpoints/small")->named_parameters();
  for (const auto& item : learned) {
    at::Tensor wanted = item.value().detach().clone();
    const bool shrinks = item.key().starts_with("embedding");
    for (int i = 0; i < 10 && shrinks; ++i) wanted.mul_(1.0 - 0.01);
    EXPECT_TRUE(torch::equal(shrunk[item.key()], wanted)) << item.key();
  }
  const Checkpoint within = load_checkpoint(folder_ / "run/checkpoints/step_9");
  EXPECT_EQ(within.state["phase_state"]["made"], 4);
  EXPECT_EQ(within.state["phase_step"], 4);
  EXPECT_TRUE(within.optimizer.contains("last"));
  EXPECT_EQ(load_newest_checkpoint(folder_ / "run").config["model"]["left"].size(), 2U);
}

TEST_F(ToyRun, GoesOnWithTheSameBitsAfterAnyCheckpoint) {
  const fs::path whole = folder_ / "whole";
  train_toy(whole);
  for (const int64_t step : {0, 3, 5, 9, 13, 15, 16}) {
    SCOPED_TRACE(step);
    const fs::path run = folder_ / ("from" + std::to_string(step));
    copy_killed_after(whole, step, run);
    EXPECT_EQ(train_toy(run, true).steps, 17);
    expect_same_step(whole, run, 17);
    EXPECT_EQ(read_text(whole / "metrics.jsonl"), read_text(run / "metrics.jsonl"));
  }
}

TEST_F(ToyRun, IsEvaluatedAndPrunedFromItsCheckpoints) {
  train_toy(folder_ / "run");
  EvaluateCheckpointOptions evaluation{.checkpoint = folder_ / "run", .open = open_tiny};
  const CheckpointEvaluation found = evaluate_checkpoint(evaluation);
  EXPECT_EQ(found.data, "two");
  EXPECT_EQ(found.evaluation.num_images, 9);
  const PruneCheckpointOptions pruning{.finetuned = folder_ / "run/checkpoints/small",
                                       .pretrained = folder_ / "run/checkpoints/learn",
                                       .out = folder_ / "pruned",
                                       .prune = {.keep = KeepSpec::count(3)}};
  EXPECT_EQ(prune_checkpoint(pruning).plan.layers.at(0).kept.size(), 3U);
  evaluation.checkpoint = folder_ / "pruned";
  EXPECT_EQ(evaluate_checkpoint(evaluation).evaluation.routing.at(0).kept.size(), 3U);
}

TEST_F(ToyRun, IsRefusedByItsOwnNamesAndPlaces) {
  EXPECT_THAT(refusal("phases.small.rat=0.5"),
              AllOf(HasSubstr("unknown key 'rat'"), HasSubstr("did you mean 'rate'?")));
  EXPECT_THAT(refusal("phases.small.rate=2"), HasSubstr("phases.1.rate"));
  EXPECT_THAT(refusal("phases.small.kind=shrunk"), HasSubstr("did you mean 'shrink'?"));
  EXPECT_THAT(refusal("phases.small.batch_size=3"), HasSubstr("unknown key 'batch_size'"));
  EXPECT_THAT(refusal("model.noise=0"),
              AllOf(StartsWith("usage: argument 'model.noise=0'"), HasSubstr("noise is 0")));
}

}  // namespace
}  // namespace moesaic
