// SPDX-License-Identifier: Apache-2.0
// Whatever a disk, a signal or a power failure does to a run: what it had saved can still be read,
// and it goes on to the bits of a run that nothing happened to.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "moesaic/checkpoint/store.h"
#include "support/faults.h"
#include "train/train_fixture.h"

namespace moesaic {
namespace {

using namespace train_test;  // NOLINT(google-build-using-namespace): the fixture of this folder
using test::for_every_call;
using test::Outcome;

/// What the newest checkpoint of a run, and those of its phases, are called.
const std::vector<std::string> kSaved = {"checkpoints/step_11", "checkpoints/pretrain",
                                         "checkpoints/prune", "best"};

class RunFaults : public ::testing::Test {
 protected:
  /// Makes the run that stands before its last step, with a `best` that this step replaces.
  void prepare() {
    if (!fs::exists(whole())) train(whole());
    fs::remove_all(disk());
    fs::create_directories(disk());
    copy_killed_after(whole(), 11, run());
    fs::copy(whole() / "best", run() / "best", fs::copy_options::recursive);
  }
  fs::path whole() const { return folder_ / "whole"; }
  fs::path disk() const { return folder_ / "disk"; }
  fs::path run() const { return disk() / "run"; }

  /// Lets every call of the last step meet the fault.
  void survives(const test::Fault& fault, bool harmless = false) {
    const auto check = [&](const Outcome& outcome) {
      EXPECT_TRUE(!harmless || outcome.exit_code == 0) << outcome.error;
      if (outcome.exit_code == 0) return expect_equal_bits(whole(), run());
      remove_leftovers(run());  // As the next start does.
      for (const std::string& saved : kSaved) EXPECT_NO_THROW(load_checkpoint(run() / saved));
      for (const auto& entry : fs::directory_iterator(run() / "checkpoints")) {
        EXPECT_FALSE(entry.path().string().ends_with(".damaged")) << entry.path();
      }
      train(run(), {}, true);
      expect_equal_bits(whole(), run());
    };
    const int calls = for_every_call(
        fault, disk(), [&] { prepare(); }, [&] { train(run(), {}, true); }, check);
    EXPECT_GT(calls, 3) << fault.call;
  }

  TempDir folder_;
};

/// Returns the number of whole checkpoints of a run; others fail the test.
int whole_checkpoints(const fs::path& run) {
  int count = 0;
  for (const fs::path& step : step_checkpoints(run / "checkpoints")) {
    EXPECT_NO_THROW(load_checkpoint(step));
    ++count;
  }
  return count;
}

TEST_F(RunFaults, AKillBetweenAnyTwoCalls) {
  NEEDS_FAULTS();
  survives({"change", "kill"});
}

TEST_F(RunFaults, APowerFailureBetweenAnyTwoCalls) {
  NEEDS_FAULTS();
  survives({"change", "power"});
}

TEST_F(RunFaults, ErrorsOfTheDisk) {
  NEEDS_FAULTS();
  for (const char* call : {"open", "read", "write", "fsync", "rename"}) survives({call, "EIO"});
  for (const char* call : {"open", "write", "fsync", "rename"}) survives({call, "ENOSPC"});
  survives({"open", "EMFILE"});
  survives({"open", "ESTALE"});
}

TEST_F(RunFaults, InterruptedAndPartialCalls) {
  NEEDS_FAULTS();
  // A local file is opened without being interrupted; of other calls a signal may take a part.
  for (const char* call : {"read", "write", "fsync"}) survives({call, "EINTR"}, true);
  for (const char* call : {"read", "write"}) survives({call, "short"}, true);
}

TEST_F(RunFaults, APowerFailureInANewFolder) {
  NEEDS_FAULTS();
  const fs::path run = disk() / "a/b/run";
  int last = 0;
  const auto prepare_disk = [&] {
    fs::remove_all(disk());
    fs::create_directory(disk());
  };
  const auto first_saves = [&] {
    TrainerOptions options = options_for(run);
    options.on_step = [](const Model&, int64_t step) { return step < 2; };
    Trainer(config_of(four_phases()), options).run();
    fs::create_directory(disk() / "saved");  // One more call, which comes after all of the run's.
  };
  const auto check = [&](const Outcome& outcome) {
    if (outcome.fired) last = whole_checkpoints(run);
  };
  for_every_call({"change", "power"}, disk(), prepare_disk, first_saves, check);
  EXPECT_EQ(last, 2) << "what was saved is gone with a parent of the folder";
}

}  // namespace
}  // namespace moesaic
