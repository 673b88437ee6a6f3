// SPDX-License-Identifier: Apache-2.0
// A run whose phase a loss ends early.
#include <gtest/gtest.h>

#include <csignal>

#include "moesaic/checkpoint/store.h"
#include "train/train_fixture.h"

namespace moesaic {
namespace {

using namespace train_test;  // NOLINT(google-build-using-namespace): the fixture of this folder

constexpr int64_t kStepLimit = 40;

/// After five steps any loss that is not the smallest so far ends it.
RunConfig stopping_run() {
  return config_of(std::string(R"({
    "name": "stops", "seed": 5, "log_every": 5, "checkpoint_every": 1, "num_checkpoints": 100,
    "evaluate_every": 0, "evaluate_batch_size": 4, "num_loader_threads": 0, "model": )") +
                   kModel + R"(,
    "phases": [{"name": "train", "data": "three", "batch_size": 6, "steps": 40,
                "optimizer": {"name": "adamw", "lr": 0.05}, "stop": {"loss_rise": 0, "min_steps": 5}}]})");
}

TrainResult train_stopping(const fs::path& run, bool resume, const std::string& split = "",
                           int image = 0) {
  return train_until(stopping_run(), options_for(run, resume), split, image);
}

/// All that a resumed run must repeat.
std::map<std::string, std::string> bits_of(const fs::path& run) {
  std::map<std::string, std::string> found;
  for (const auto& entry : fs::recursive_directory_iterator(run)) {
    const std::string name = fs::relative(entry.path(), run).string();
    const bool of_the_end = name.starts_with("checkpoints/train/") || name.starts_with("best/");
    const bool compared = name == "metrics.jsonl" || (of_the_end && !name.ends_with("config.json"));
    if (entry.is_regular_file() && compared) found[name] = read_text(entry.path());
  }
  return found;
}

/// A finished run that all tests compare with.
const fs::path& stopped_run() {
  static const TempDir folder;
  static const fs::path run = [] {
    EXPECT_EQ(train_stopping(folder / "run", false).signal, 0);
    return folder / "run";
  }();
  return run;
}

int64_t steps_of(const fs::path& run) {
  return load_checkpoint(run / "checkpoints/train").state["step"];
}

TEST(EarlyStop, LeavesACheckpointAndAnEvaluationAtItsLastStep) {
  const int64_t steps = steps_of(stopped_run());
  ASSERT_GE(steps, 5);
  ASSERT_LT(steps, kStepLimit);
  const Checkpoint last =
      load_checkpoint(stopped_run() / "checkpoints" / ("step_" + std::to_string(steps)));
  EXPECT_EQ(last.state["phase_step"], steps);
  EXPECT_EQ(last.state["phase_state"]["updates"], steps);
  EXPECT_EQ(last.state["phase_state"]["stopped"], true);
  EXPECT_EQ(last.state["phase_complete"], true);
  EXPECT_FALSE(fs::exists(stopped_run() / "checkpoints" / ("step_" + std::to_string(steps + 1))));
  const std::vector<Json> evaluations = metric_lines(stopped_run(), "eval");
  ASSERT_EQ(evaluations.size(), 1U);
  EXPECT_EQ(evaluations[0]["step"], steps);
  EXPECT_EQ(load_checkpoint(stopped_run() / "best").state["step"], steps);
}

TEST(EarlyStop, AFinishedRunDoesNothingAgain) {
  const TempDir folder;
  fs::copy(stopped_run(), folder / "run", fs::copy_options::recursive);
  fs::remove_all(folder / "run/best");
  const TrainResult result = train_stopping(folder / "run", true);
  EXPECT_EQ(result.steps, steps_of(stopped_run()));
  EXPECT_FALSE(result.evaluation);
  EXPECT_FALSE(fs::exists(folder / "run/best"));
  EXPECT_EQ(read_text(folder / "run/metrics.jsonl"), read_text(stopped_run() / "metrics.jsonl"));
}

TEST(EarlyStop, AfterASignalInAnyStepItEndsAtTheSame) {
  const int64_t steps = steps_of(stopped_run());
  for (int64_t step = 0; step <= steps; ++step) {  // the last one ends the run without an update
    SCOPED_TRACE(step);
    const TempDir folder;
    const TrainResult cut =
        train_stopping(folder / "run", false, "train", static_cast<int>(6 * step));
    EXPECT_EQ(cut.signal, SIGTERM);
    EXPECT_EQ(cut.steps, std::min(step + 1, steps));
    EXPECT_EQ(train_stopping(folder / "run", true).signal, 0);
    EXPECT_EQ(bits_of(folder / "run"), bits_of(stopped_run()));
  }
}

TEST(EarlyStop, AfterASignalInItsEvaluationItIsMadeAgain) {
  const TempDir folder;
  const TrainResult cut = train_stopping(folder / "run", false, "test", 5);
  EXPECT_EQ(cut.signal, SIGTERM);
  EXPECT_EQ(cut.steps, steps_of(stopped_run()));
  EXPECT_TRUE(train_stopping(folder / "run", true).evaluation);
  EXPECT_EQ(bits_of(folder / "run"), bits_of(stopped_run()));
}

TEST(EarlyStop, ARunThatWasKilledAfterAnyStepEndsAtTheSame) {
  const int64_t steps = steps_of(stopped_run());
  for (int64_t step = 1; step < steps; ++step) {
    SCOPED_TRACE(step);
    const TempDir folder;
    copy_killed_after(stopped_run(), step, folder / "run");
    EXPECT_EQ(train_stopping(folder / "run", true).steps, steps);
    EXPECT_EQ(bits_of(folder / "run"), bits_of(stopped_run()));
  }
}

}  // namespace
}  // namespace moesaic
