// SPDX-License-Identifier: Apache-2.0
// A phase whose steps come in blocks: whatever is done at intervals is also done where a block
// jumps over a multiple.

#include "report/experiment_run.h"
#include "support/matchers.h"
#include "support/toy_family.h"
#include "support/toy_phase.h"
#include "train/train_fixture.h"

namespace moesaic {
namespace {

using namespace train_test;  // NOLINT(google-build-using-namespace): the fixture of this folder

/// Five blocks of four steps.
RunConfig block_run(const std::vector<std::string>& changes = {}) {
  testing::add_toy_family();
  testing::add_shrink_phase();
  return config_of(
      R"({"name": "toy-blocks", "seed": 5, "log_every": 5, "checkpoint_every": 3,
          "num_checkpoints": 100, "evaluate_every": "6 epochs", "evaluate_batch_size": 4,
          "num_loader_threads": 0, "model": {"name": "toy", "image_size": 4},
          "phases": [{"name": "small", "kind": "shrink", "data": "three", "steps": 20,
                      "rate": 0.01, "chunk_size": 4}]})",
      changes);
}

void train_blocks(const fs::path& out, const std::vector<std::string>& changes = {},
                  bool resume = false) {
  EXPECT_EQ(Trainer(block_run(changes), options_for(out, resume)).run().steps, 20);
}

std::vector<int64_t> steps_of_lines(const fs::path& run, const std::string& kind) {
  std::vector<int64_t> steps;
  for (const Json& line : metric_lines(run, kind)) steps.push_back(line["step"]);
  return steps;
}

TEST(ToyBlocks, SingleStepsPassAMultipleWhereTheyReachIt) {
  for (int64_t every = 1; every <= 5; ++every) {
    for (int64_t step = 1; step <= 12; ++step) {
      EXPECT_EQ(passes_multiple(step - 1, step, every), step % every == 0);
      EXPECT_FALSE(passes_multiple(step, step, every));
    }
  }
  EXPECT_FALSE(passes_multiple(0, 100, 0));
}

TEST(ToyBlocks, KeepTheIntervals) {
  const TempDir folder;
  train_blocks(folder / "run");
  EXPECT_THAT(steps_of_lines(folder / "run", "train"), ElementsAre(8, 12, 16, 20));
  EXPECT_THAT(steps_of_lines(folder / "run", "eval"), ElementsAre(8, 12, 20));
  EXPECT_THAT(test::names_in(folder / "run/checkpoints"),
              ElementsAre("small", "step_12", "step_16", "step_20", "step_4", "step_8"));
}

TEST(ToyBlocks, MeansOfALineArePerStep) {
  MetricWindow window;
  window.add({{"loss", 1.0}}, 1);
  window.add({{"loss", 3.0}}, 3);
  EXPECT_EQ(window.steps, 4);
  EXPECT_EQ(window.sums.at("loss"), 10.0);
  window.add({{"loss", 2.0}}, 0);  // A step whose loss ended the phase.
  EXPECT_EQ(window.steps, 5);
}

TEST(ToyBlocks, KeepTheLastCheckpoints) {
  const TempDir folder;
  train_blocks(folder / "run", {"num_checkpoints=2"});
  EXPECT_THAT(test::names_in(folder / "run/checkpoints"),
              ElementsAre("small", "step_16", "step_20"));
}

TEST(ToyBlocks, GoOnWithTheSameBits) {
  const TempDir folder;
  const fs::path whole = folder / "whole";
  train_blocks(whole);
  for (const int64_t step : {4, 8, 16}) {
    SCOPED_TRACE(step);
    const fs::path run = folder / ("from" + std::to_string(step));
    copy_killed_after(whole, step, run);
    train_blocks(run, {}, true);
    expect_same_step(whole, run, 20);
    EXPECT_EQ(read_text(whole / "metrics.jsonl"), read_text(run / "metrics.jsonl"));
  }
}

TEST(ToyBlocks, KeepTheIntervalOfSnapshots) {
  RunsConfig experiment;
  experiment.probes = {"steps"};
  experiment.snapshots = SnapshotConfig{.every = 5, .probes = {"steps"}};
  DatasetCache datasets(open_tiny);
  const PreparedRow row =
      prepare_run(block_run(), PlannedRow{.name = "row"}, experiment, "cpu", datasets);
  const auto made = row.make(0, [](int64_t) { return true; });
  ASSERT_TRUE(made);
  std::vector<double> steps;
  for (const Measurement& snapshot : made->at("row").snapshots)
    steps.push_back(snapshot.numbers.at("steps"));
  EXPECT_THAT(steps, ElementsAre(0, 8, 12, 16, 20));
}

}  // namespace
}  // namespace moesaic
