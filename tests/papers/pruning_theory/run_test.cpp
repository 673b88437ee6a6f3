// SPDX-License-Identifier: Apache-2.0
// Algorithm 1 of the pruning paper as a run: phases that restore, prune and go on.
#include <torch/torch.h>

#include "papers/run_fixture.h"

namespace moesaic {
namespace {

using namespace train_test;  // NOLINT(google-build-using-namespace): the fixture of this folder

RunConfig pattern_run(const std::vector<std::string>& changes = {}) {
  return config_of(
      R"({"name": "patterns", "seed": 5, "checkpoint_every": 8, "num_checkpoints": 100,
          "num_loader_threads": 0, "evaluate_batch_size": 500,
          "model": {"name": "pattern-moe", "num_experts": 8},
          "phases": [
            {"name": "start", "kind": "pattern_sgd", "data": "patterns", "steps": 0},
            {"name": "learn", "kind": "pattern_sgd", "data": "patterns", "steps": 40,
             "expert_lr": 0.2, "router_lr": 0.1, "chunk_size": 8},
            {"name": "random", "kind": "pattern_sgd", "data": "patterns", "steps": 0,
             "on_entry": {"prune": {"criterion": "random", "keep": 1}}},
            {"name": "prune", "kind": "pattern_sgd", "data": "patterns", "steps": 0,
             "on_entry": {"restore": "learn", "prune": {"keep": 1, "pretrained": "start"}}},
            {"name": "recover", "kind": "pattern_sgd", "data": "patterns", "steps": 12,
             "stop_at_zero_loss": false, "chunk_size": 5}]})",
      changes);
}

TEST(PatternRun, BranchesAreTheSameInMemoryAndFromCheckpoints) {
  const TempDir folder;
  Trainer on_disk(pattern_run(), options_with_described(folder / "run"));
  on_disk.run();
  std::map<std::string, size_t> experts;
  TrainerOptions options = options_with_described("");
  options.on_phase_end = [&](Model& model, const std::string& phase, int64_t) {
    experts[phase] = model.moe_blocks()[0].layer->kept().size();
  };
  Trainer in_memory(pattern_run(), options);
  in_memory.run();
  EXPECT_EQ(experts, (std::map<std::string, size_t>{
                         {"start", 8}, {"learn", 8}, {"random", 2}, {"prune", 2}, {"recover", 2}}));
  EXPECT_EQ(on_disk.model()->config(), in_memory.model()->config());
  const TensorMap wanted = state_of(*on_disk.model());
  for (const auto& [name, tensor] : state_of(*in_memory.model())) {
    EXPECT_TRUE(torch::equal(tensor, wanted.at(name))) << name;
  }
}

TEST(PatternRun, GoesOnWithTheSameBits) {
  expect_same_files(pattern_run(), {8, 24, 45}, {"checkpoints/recover/model.safetensors"});
}

TEST(PatternRun, RestoresAllParameters) {
  // Whatever a branch left at random, the next one chooses among all eight.
  const std::vector<std::string> mild = {"phases.random.on_entry.prune.keep=3"};
  const auto weights = [](const std::vector<std::string>& changes) {
    return train_in_memory(pattern_run(changes));
  };
  EXPECT_EQ(weights(mild)->config(), weights({})->config());
  EXPECT_EQ(weights({"phases.prune.on_entry.prune.keep=4"})->moe_blocks()[0].layer->kept().size(),
            8U);
}

TEST(PatternRun, EndsWithTheFirstBatchWithoutLoss) {
  const std::vector<std::string> quick = {"phases.learn.steps=2000"};
  TrainerOptions options = options_with_described("");
  int64_t learned = 0;
  options.on_phase_end = [&](Model&, const std::string& phase, int64_t step) {
    if (phase == "learn") learned = step;
  };
  Trainer(pattern_run(quick), options).run();
  EXPECT_GT(learned, 10);
  EXPECT_LT(learned, 1000);
}

TEST(PatternRun, RefusesWhatDoesNotFit) {
  const auto refusal = [](const std::vector<std::string>& changes) {
    return refusal_of([&] { return pattern_run(changes); });
  };
  EXPECT_THAT(refusal({"phases.prune.on_entry.restore=lern"}),
              AllOf(HasSubstr("no earlier phase is called 'lern'"), HasSubstr("'learn'")));
  EXPECT_THAT(refusal({"phases.learn.on_entry.restore=recover"}),
              HasSubstr("no earlier phase is called 'recover'"));
  EXPECT_THAT(refusal({"phases.learn.data=three"}),
              HasSubstr("the model takes rows of 100 numbers"));
  EXPECT_THAT(refusal({"phases.learn.frozen=[\"router\"]"}), HasSubstr("set a learning rate to 0"));
  const RunConfig other = config_of(std::string(R"({"name": "x", "model": )") + kModel +
                                    R"(, "phases": [{"name": "p", "kind": "pattern_sgd",
                                      "data": "three", "steps": 1}]})");
  EXPECT_THAT(refusal_of([&] { return other; }), HasSubstr("needs a model with pattern experts"));
}

}  // namespace
}  // namespace moesaic
