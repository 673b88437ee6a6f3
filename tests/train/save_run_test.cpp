// SPDX-License-Identifier: Apache-2.0
// Checkpoints are written behind training.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>

#include "moesaic/checkpoint/store.h"
#include "train/train_fixture.h"

namespace moesaic {
namespace {

using namespace train_test;  // NOLINT(google-build-using-namespace): the fixture of this folder
using ::testing::HasSubstr;
using ::testing::Not;

std::vector<std::string> entries_of(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) {
    names.push_back(entry.path().filename().string());
  }
  return names;
}

TEST(SaveRun, TellsItsTimesToTensorBoardAndNotToMetricsThatRepeat) {
  const TempDir folder;
  train(folder / "run");
  std::string events;
  for (const std::string& name : entries_of(folder / "run")) {
    if (name.starts_with("events.out")) events += read_text(folder / "run" / name);
  }
  for (const char* time : {"pause", "copy", "write"}) {
    EXPECT_THAT(events, HasSubstr(fmt::format("save/{}_seconds", time)));
  }
  EXPECT_THAT(read_text(folder / "run/metrics.jsonl"), Not(HasSubstr("seconds")));
}

TEST(SaveRun, AFullDiskEndsItWithTheLastCheckpointWhole) {
  const TempDir folder;
  train(folder / "whole");
  std::optional<test::FileSizeLimit> full;
  TrainerOptions options = options_for(folder / "run");
  options.watch = [&](Model&, int64_t step) {
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
  EXPECT_THAT(entries_of(folder / "run/checkpoints"), ::testing::Each(Not(HasSubstr(".part"))));
  train(folder / "run", {}, true);
  expect_equal_bits(folder / "whole", folder / "run");
}

TEST(SaveRun, AnErrorElsewhereLetsASaveFinish) {
  const TempDir folder;
  TrainerOptions options = options_for(folder / "run");
  options.watch = [](Model&, int64_t step) {
    if (step == 3) fail("the watcher failed");
    return true;
  };
  EXPECT_THAT(error_of([&] { Trainer(config_of(four_phases()), options).run(); }),
              HasSubstr("the watcher failed"));
  EXPECT_EQ(load_newest_checkpoint(folder / "run").state["step"], 3);  // It was waited for.
}

}  // namespace
}  // namespace moesaic
