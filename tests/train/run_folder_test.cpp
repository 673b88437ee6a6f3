// SPDX-License-Identifier: Apache-2.0
#include "moesaic/train/run_folder.h"

#include "support/matchers.h"
#include "train/train_fixture.h"

namespace moesaic {
namespace {

using namespace train_test;  // NOLINT(google-build-using-namespace): the fixture of this folder

/// What is there when a run fails in its first step.
void leave_a_start(const fs::path& run) {
  fs::create_directories(run / "checkpoints");
  write_atomic(run / ".lock", "1\n");
  write_atomic(run / "config.json", "{\"name\": \"old\", \"phases\": []}");
  write_atomic(run / "data.json", "{}");
  write_atomic(run / "metrics.jsonl", "{}\n");
  write_atomic(run / "events.out.tfevents.1.host", "old");
}

TEST(RunFolder, AFailedStartDoesNotBlockItsFolder) {
  TempDir folder;
  leave_a_start(folder / "run");
  EXPECT_THAT(test::said_by([&] { train(folder / "run"); }),
              HasSubstr("run: removed 1 event file of TensorBoard, of a start that left no "
                        "checkpoint\n"));
  EXPECT_FALSE(fs::exists(folder / "run/events.out.tfevents.1.host"));
  EXPECT_EQ(read_text(folder / "run/metrics.jsonl.old"), "{}\n");
  fs::remove(folder / "run/metrics.jsonl.old");
  const fs::path other = folder / "other";
  train(other);
  expect_equal_bits(folder / "run", other);
}

TEST(RunFolder, AStartThatWasKilledDoesNotBlockItsFolder) {
  const std::string data = R"({"splits": {}})";
  const std::vector<std::map<std::string, std::string>> moments = {
      {{".data.json.7-0.moesaic.part", ""}},
      {{"data.json", data}, {".config.json.7-1.moesaic.part", ""}},
      {{"data.json", data}, {"config.json", R"({"phases": []})"}, {"metrics.jsonl", ""}},
      {{"data.json", data},
       {"config.json", R"({"phases": []})"},
       {"checkpoints/.step_1.7-2.moesaic.part", ""}},
  };
  for (const auto& files : moments) {
    for (const bool resume : {false, true}) {
      TempDir folder;
      fs::create_directories(folder / "checkpoints");
      write_atomic(folder / ".lock", "1\n");
      for (const auto& [name, text] : files) write_atomic(folder / name, text);
      EXPECT_NO_THROW(RunFolder::check(folder / ".", resume));
      const RunFolder run(folder / ".", resume);
      EXPECT_FALSE(fs::exists(folder / ".data.json.7-0.moesaic.part"));
      EXPECT_FALSE(fs::exists(folder / ".config.json.7-1.moesaic.part"));
      EXPECT_TRUE(fs::is_empty(folder / "checkpoints"));
    }
  }
}

TEST(RunFolder, MetricsOfCheckpointsThatWereMovedAwayAreKept) {
  for (const bool resume : {false, true}) {
    TempDir folder;
    train(folder / "run");
    const std::string metrics = read_text(folder / "run/metrics.jsonl");
    fs::rename(folder / "run/checkpoints", folder / "checkpoints");
    fs::remove_all(folder / "run/best");
    train(folder / "run", {}, resume);
    EXPECT_EQ(read_text(folder / "run/metrics.jsonl.old"), metrics);
    EXPECT_EQ(read_text(folder / "run/metrics.jsonl"), metrics);
  }
}

TEST(RunFolder, WhatIsLeftWithoutCheckpointsOfStepsIsKept) {
  TempDir folder;
  train(folder / "run");
  const std::string metrics = read_text(folder / "run/metrics.jsonl");
  const std::string best = read_text(folder / "run/best/MANIFEST.json");
  for (const auto& entry : fs::directory_iterator(folder / "run/checkpoints")) {
    fs::remove_all(entry.path());
  }
  // As a kill leaves it between the two renames that replace it.
  fs::rename(folder / "run/best", folder / "run/.best.1-2.moesaic.old");
  train(folder / "run", {}, /*resume=*/true);
  EXPECT_EQ(read_text(folder / "run/metrics.jsonl.old"), metrics);
  EXPECT_EQ(read_text(folder / "run/best.old/MANIFEST.json"), best);
}

TEST(RunFolder, WhatIsKeptKeepsItsName) {
  TempDir folder;
  const auto put = [&](const std::string& best) {
    fs::create_directories(folder / "best");
    write_atomic(folder / "best/MANIFEST.json", best);
    const RunFolder run(folder / ".", /*resume=*/true);
  };
  write_atomic(folder / "config.json", "{}");
  for (const char* best : {"1", "2", "3"}) put(best);
  EXPECT_EQ(read_text(folder / "best.old/MANIFEST.json"), "1");
  EXPECT_EQ(read_text(folder / "best.old-2/MANIFEST.json"), "2");
  EXPECT_EQ(read_text(folder / "best.old-3/MANIFEST.json"), "3");
  EXPECT_FALSE(fs::exists(folder / "best"));
}

TEST(RunFolder, FilesOfSomeoneElseDo) {
  const std::vector<std::function<void(const fs::path&)>> changes = {
      [](const fs::path& run) { fs::remove(run / ".lock"); },
      [](const fs::path& run) { fs::remove(run / "config.json"); },
      [](const fs::path& run) { write_atomic(run / "config.json", "{\"mine\": 1}"); },
      [](const fs::path& run) {
        for (const auto& entry : fs::directory_iterator(run)) {
          const std::string name = entry.path().filename().string();
          if (name != ".lock" && name != "data.json") fs::remove_all(entry.path());
        }
      },
      [](const fs::path& run) { write_atomic(run / "notes.txt", "mine"); },
      [](const fs::path& run) { fs::create_directories(run / "checkpoints/step_1"); },
  };
  for (const auto& change : changes) {
    TempDir folder;
    leave_a_start(folder / "run");
    change(folder / "run");
    EXPECT_THAT(
        error_of([&] { RunFolder::check(folder / "run", false); }),
        HasSubstr("usage: " + (folder / "run").string() + ": output directory is not empty"));
  }
}

TEST(RunFolder, AFolderWithoutItsConfigurationIsNotGoneOnWith) {
  TempDir folder;
  train(folder / "run");
  fs::remove(folder / "run/config.json");
  fs::create_directories(folder / "mine");
  write_atomic(folder / "mine/notes.txt", "mine");
  // A corrupt run, and what is none.
  for (const auto& [name, kind] : {std::pair("run", "failure: "), std::pair("mine", "usage: ")}) {
    EXPECT_THAT(
        error_of([&] { RunFolder::check(folder / name, true); }),
        AllOf(HasSubstr(kind), HasSubstr("config.json is missing, so the run cannot be resumed")));
  }
  EXPECT_NO_THROW(RunFolder::check(folder / "new", true));
}

TEST(RunFolder, ARecordThatIsNoneIsOneLineWithAWayOut) {
  const std::vector<std::pair<std::string, std::string>> damages = {
      {"", "empty, expected JSON"}, {" \n", "empty, expected JSON"}, {"[]", "must be an object"}};
  TempDir folder;
  const fs::path run = folder / "run";
  train(run);
  for (const auto& [text, what] : damages) {
    write_atomic(run / "data.json", text);
    EXPECT_THAT(error_of([&] { RunFolder::started_data(run); }),
                AllOf(HasSubstr((run / "data.json").string()), HasSubstr(what),
                      HasSubstr("; without this file the run resumes, its data unchecked")));
  }
  fs::remove(run / "data.json");
  EXPECT_NO_THROW(train(run, {}, /*resume=*/true));
  const std::string init = ", where init=" + run.string() + " trains its network on";
  for (const bool checkpoints : {true, false}) {
    if (!checkpoints) fs::remove_all(run / "checkpoints");
    for (const auto& [text, what] : damages) {
      write_atomic(run / "config.json", text);
      EXPECT_THAT(error_of([&] { train(run, {}, /*resume=*/true); }),
                  AllOf(HasSubstr((run / "config.json").string()), HasSubstr(what),
                        EndsWith("; give another --out" + (checkpoints ? init : ""))));
    }
  }
}

TEST(RunFolder, OtherSettingsAreOfferedTheNetworkOnlyOfARunThatHasOne) {
  TempDir folder;
  const fs::path run = folder / "run";
  train(run);
  const auto refused = [&] { return error_of([&] { train(run, {"seed=6"}, /*resume=*/true); }); };
  EXPECT_THAT(refused(), EndsWith("; set back what changed or give another --out, where init=" +
                                  run.string() + " trains its network on"));
  fs::remove_all(run / "checkpoints");
  EXPECT_THAT(refused(), EndsWith("; set back what changed or give another --out"));
}

TEST(RunFolder, LinksThatARunWouldWriteThroughAreRefused) {
  for (const char* name : {".lock", "config.json", "metrics.jsonl", "checkpoints"}) {
    TempDir folder;
    train(folder / "run");
    fs::rename(folder / "run" / name, folder / "mine");
    fs::create_symlink("../mine", folder / "run" / name);
    EXPECT_THAT(error_of([&] { train(folder / "run", {}, true); }),
                HasSubstr("usage: " + (folder / "run" / name).string() + ": a link"));
  }
}

TEST(RunFolder, ACheckpointIsNoRun) {
  TempDir folder;
  train(folder / "run");
  for (const bool resume : {false, true}) {
    EXPECT_THAT(error_of([&] { RunFolder::check(folder / "run/checkpoints/pretrain", resume); }),
                HasSubstr("a checkpoint, not a run"));
  }
}

}  // namespace
}  // namespace moesaic
