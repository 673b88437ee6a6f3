// SPDX-License-Identifier: Apache-2.0
// Checkpoints are written behind training.

#include <optional>

#include "moesaic/checkpoint/store.h"
#include "support/matchers.h"
#include "train/train_fixture.h"

namespace moesaic {
namespace {

using namespace train_test;  // NOLINT(google-build-using-namespace): the fixture of this folder
using SaveRun = test::InFolder;

/// Returns all that a run told TensorBoard, in its form.
std::string events_of(const fs::path& run) {
  std::string events;
  for (const std::string& name : test::names_in(run)) {
    if (name.starts_with("events.out")) events += read_text(run / name);
  }
  return events;
}

TEST_F(SaveRun, GivesPhasesAndSplitsCurvesOfTheirOwnInTensorBoard) {
  TrainerOptions options = options_for(folder / "run");
  options.open = open_with_splits({"train", "validation", "test"});
  Trainer(config_of(four_phases(), {"log_every=1"}), options).run();
  const std::string events = events_of(folder / "run");
  for (const char* tag :
       {"train/pretrain/loss", "train/finetune/loss", "train/recover/images_per_second",
        "validation/recover/accuracy", "test/recover/accuracy", "test/recover/images_per_second"}) {
    EXPECT_THAT(events, HasSubstr(tag));
  }
  // A tag follows its length in bytes, which is that of "\n" here.
  for (const char* tag : {"eval/", "\ntrain/loss"}) EXPECT_THAT(events, Not(HasSubstr(tag)));
}

TEST_F(SaveRun, TellsItsTimesToTensorBoardAndNotToMetricsThatRepeat) {
  train(folder / "run");
  const std::string events = events_of(folder / "run");
  for (const char* time : {"pause", "copy", "write"}) {
    EXPECT_THAT(events, HasSubstr(fmt::format("save/{}_seconds", time)));
  }
  EXPECT_THAT(read_text(folder / "run/metrics.jsonl"), Not(HasSubstr("seconds")));
}

TEST_F(SaveRun, AFullDiskEndsItWithTheLastCheckpointComplete) {
  train(folder / "whole");
  std::optional<test::FileSizeLimit> full;
  TrainerOptions options = options_for(folder / "run");
  options.on_step = [&](Model&, int64_t step) {
    // The save of step 3 began when that of step 2 was written.
    const fs::path written = folder / "run/checkpoints/step_2/model.safetensors";
    if (step == 3) full.emplace(fs::file_size(written) - 1);
    return true;
  };
  const std::string error = error_of([&] { Trainer(config_of(four_phases()), options).run(); });
  full.reset();
  EXPECT_THAT(error, HasSubstr("failure: "));
  EXPECT_THAT(error, HasSubstr("cannot write"));
  EXPECT_GE(load_newest_checkpoint(folder / "run").state["step"], 2);
  EXPECT_LE(load_newest_checkpoint(folder / "run").state["step"], 4);
  EXPECT_THAT(test::names_in(folder / "run/checkpoints"), ::testing::Each(Not(HasSubstr(".part"))));
  train(folder / "run", {}, true);
  expect_equal_bits(folder / "whole", folder / "run");
}

TEST_F(SaveRun, AnErrorElsewhereLetsASaveFinish) {
  TrainerOptions options = options_for(folder / "run");
  options.on_step = [](Model&, int64_t step) {
    if (step == 3) fail("the watcher failed");
    return true;
  };
  EXPECT_THAT(error_of([&] { Trainer(config_of(four_phases()), options).run(); }),
              HasSubstr("the watcher failed"));
  EXPECT_EQ(load_newest_checkpoint(folder / "run").state["step"], 3);  // It was waited for.
}

}  // namespace
}  // namespace moesaic
