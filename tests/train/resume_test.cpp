// SPDX-License-Identifier: Apache-2.0
// Same seed, same bits: twice, with any number of loader threads, and resumed at any step.

#include <csignal>
#include <span>

#include "moesaic/base/hash.h"
#include "moesaic/checkpoint/store.h"
#include "support/matchers.h"
#include "train/train_fixture.h"

namespace moesaic {
namespace {

using namespace train_test;  // NOLINT(google-build-using-namespace): the fixture of this folder
using Resume = test::InFolder;

/// A finished run that all tests compare with.
const fs::path& reference() {
  static const TempDir folder;
  static const fs::path run = [] {
    train(folder / "run");
    return folder / "run";
  }();
  return run;
}

TEST_F(Resume, ASecondRunRepeatsEveryBit) {
  train(folder / "run");
  expect_equal_bits(reference(), folder / "run");
}

TEST_F(Resume, AnotherSeedDoesNot) {
  train(folder / "run", {"seed=6"});
  EXPECT_NE(bits(reference()).at("best/model.safetensors"),
            bits(folder / "run").at("best/model.safetensors"));
}

TEST_F(Resume, AnyNumberOfLoaderThreadsGivesTheSameBits) {
  for (const char* threads : {"1", "2", "4"}) {
    TempDir folder;
    train(folder / "run", {std::string("num_loader_threads=") + threads});
    expect_equal_bits(reference(), folder / "run");
  }
}

TEST_F(Resume, OnOtherArithmeticIsSaid) {
  const auto said_by = [](const std::string& computed_with) {
    TempDir folder;
    copy_killed_after(reference(), 8, folder / "run");
    const fs::path step = folder / "run/checkpoints/step_8";
    Checkpoint checkpoint = load_checkpoint(step);
    if (!computed_with.empty()) checkpoint.state["computed_with"] = computed_with;
    save_checkpoint(step, checkpoint);
    const std::string said = test::said_by([&] { train(folder / "run", {}, true); });
    expect_equal_bits(reference(), folder / "run");  // Later checkpoints have what is true now.
    return said;
  };
  EXPECT_THAT(said_by(""), Not(HasSubstr("computed with")));
  EXPECT_THAT(said_by("99 threads, none"),
              HasSubstr("step_8: computed with 99 threads, none, resumed with "));
}

TEST_F(Resume, OfAStateThatSaysWhatCannotBeCutsNoMetrics) {
  const fs::path run = folder / "run";
  copy_killed_after(reference(), 3, run);
  const fs::path step = run / "checkpoints/step_3";
  const std::string metrics = read_text(run / "metrics.jsonl");
  const Checkpoint right = load_checkpoint(step);
  const std::vector<std::function<void(nlohmann::ordered_json&)>> changes = {
      [](auto& state) { state["phase_state"]["batch"] = -1; },
      [](auto& state) { state["phase_state"]["epoch"] = int64_t{1} << 62; },
      [](auto& state) { state["phase_state"]["replaced"] = {-1}; },
      [](auto& state) { state["step"] = int64_t{1} << 60; },
      [](auto& state) { state["phase_step"] = 99; },
  };
  for (const auto& change : changes) {
    Checkpoint wrong = right;
    change(wrong.state);
    save_checkpoint(step, wrong);
    EXPECT_THAT(error_of([&] { train(run, {}, true); }), HasSubstr("failure: " + step.string()));
    EXPECT_EQ(read_text(run / "metrics.jsonl"), metrics);
  }
}

TEST_F(Resume, RunningStatisticsGoOnWithTheSameBits) {
  const RunConfig config = config_of(R"({
    "name": "norms", "seed": 5, "checkpoint_every": 1, "num_checkpoints": 100,
    "model": {"name": "image-moe", "expert": "mobilenetv2", "image_size": 4, "channels": 1,
              "num_classes": 3, "width": 0.05, "router": {}},
    "phases": [{"name": "train", "data": "three", "batch_size": 6, "steps": 5,
                "optimizer": {"name": "sgd", "lr": 0.1, "l2": 0.01},
                "optimizers": [{"parameters": ["^moe.experts"],
                                "optimizer": {"name": "normalized_sgd", "lr": 0.1}}]}]})");
  const fs::path whole = folder / "whole", resumed = folder / "resumed";
  Trainer(config, options_for(whole)).run();
  copy_killed_after(whole, 3, resumed);
  Trainer(config, options_for(resumed, true)).run();
  expect_same_step(whole, resumed, 5);
}

TEST_F(Resume, AtEveryStepGivesTheSameBits) {
  for (int64_t step = 0; step <= 12; ++step) {
    SCOPED_TRACE(step);
    TempDir folder;
    copy_killed_after(reference(), step, folder / "run");
    const TrainResult result = train(folder / "run", {}, true);
    EXPECT_EQ(result.steps, 12);
    if (step < 12) {
      expect_equal_bits(reference(), folder / "run");
    } else {
      EXPECT_FALSE(fs::exists(folder / "run/best")) << "a complete run did something again";
    }
  }
}

TEST_F(Resume, OtherCheckpointsOnTheWayChangeNothing) {
  train(folder / "run", {"checkpoint_every=5", "num_checkpoints=1"});
  EXPECT_EQ(bits(reference()), bits(folder / "run"));
}

TEST_F(Resume, FallsBackToTheLastCompleteCheckpoint) {
  copy_killed_after(reference(), 8, folder / "run");
  fs::resize_file(folder / "run/checkpoints/step_8/model.safetensors", 100);
  train(folder / "run", {"num_checkpoints=1"}, true);
  EXPECT_EQ(bits(reference()), bits(folder / "run"));
}

TEST_F(Resume, ADamagedCheckpointNeverOutlivesTheGoodOne) {
  copy_killed_after(reference(), 8, folder / "run");
  fs::resize_file(folder / "run/checkpoints/step_8/model.safetensors", 100);
  StopSignal stop;
  TrainerOptions options = options_for(folder / "run", true);
  options.stop = &stop;
  std::raise(SIGTERM);  // before the first step: only what resuming itself did is left
  const RunConfig config = config_of(four_phases(), {"num_checkpoints=1"});
  EXPECT_EQ(Trainer(config, options).run().signal, SIGTERM);
  EXPECT_FALSE(fs::exists(folder / "run/checkpoints/step_8"));
  load_checkpoint(folder / "run/checkpoints/step_7");
  // It is kept, for nobody knows what its user can still make of it.
  EXPECT_EQ(fs::file_size(folder / "run/checkpoints/step_8.damaged/model.safetensors"), 100u);
  EXPECT_TRUE(fs::exists(folder / "run/checkpoints/step_8.damaged/optimizer.safetensors"));
}

/// All files of a folder with their bytes, but for the lock.
std::map<std::string, std::string> files_of(const fs::path& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    const bool file = entry.symlink_status().type() == fs::file_type::regular;
    if (entry.path().filename() != ".lock") {
      files[entry.path().string()] = file ? read_text(entry.path()) : "";
    }
  }
  return files;
}

TEST_F(Resume, ACheckpointThatCannotBeReadEndsItAndStays) {
  using Change = std::function<void(const fs::path& step)>;
  const auto manifest = [](const fs::path& step, const auto& change) {
    auto json = nlohmann::ordered_json::parse(read_text(step / "MANIFEST.json"));
    change(json);
    write_atomic(step / "MANIFEST.json", json.dump());
  };
  const auto loop = [](const std::string& name) {
    return [name](const fs::path& step) {
      fs::remove(step / name);
      fs::create_symlink(name, step / name);  // Looking it up is an error, as on a sick disk.
    };
  };
  const std::vector<std::pair<std::string, Change>> changes = {
      {"model.safetensors: Too many levels", loop("model.safetensors")},
      {"MANIFEST.json: Too many levels", loop("MANIFEST.json")},
      {"has version 2",
       [&](const fs::path& step) { manifest(step, [](auto& json) { json["version"] = 2; }); }},
      {"MANIFEST.json:1:", [](const fs::path& step) { write_atomic(step / "MANIFEST.json", "{"); }},
      {"state.json", [&](const fs::path& step) {
         write_atomic(step / "state.json", "{");
         manifest(step, [](auto& json) {
           json["files"]["state.json"] = {{"size", 1},
                                          {"sha256", sha256_hex(std::as_bytes(std::span("{", 1)))}};
         });
       }}};
  for (const auto& [text, change] : changes) {
    TempDir folder;
    copy_killed_after(reference(), 8, folder / "run");
    change(folder / "run/checkpoints/step_8");
    const auto before = files_of(folder / "run");
    EXPECT_THAT(error_of([&] { train(folder / "run", {}, true); }),
                AllOf(HasSubstr("failure: "), HasSubstr(text),
                      HasSubstr("step_8 may be intact, so it is not skipped")));
    EXPECT_EQ(before, files_of(folder / "run")) << text;
  }
}

TEST_F(Resume, AStateThatAwaitsAnEvaluationOfNoSplitEndsIt) {
  copy_killed_after(reference(), 8, folder / "run");
  const fs::path step = folder / "run/checkpoints/step_8";
  Checkpoint checkpoint = load_checkpoint(step);
  checkpoint.state["evaluations_due"] = {"noon"};
  save_checkpoint(step, checkpoint);
  EXPECT_THAT(error_of([&] { train(folder / "run", {}, true); }),
              AllOf(HasSubstr("failure: "), HasSubstr("state.json: evaluations_due: '"),
                    HasSubstr("has no split 'noon'; it has ")));
}

TEST_F(Resume, ChangedSettingsAreRefusedUnlessTheyChangeNoNumber) {
  copy_killed_after(reference(), 4, folder / "run");
  EXPECT_THAT(error_of([&] { train(folder / "run", {"phases.0.optimizer.lr=1"}, true); }),
              HasSubstr("'phases.0.optimizer.lr' was 0.01 and is 1.0 now"));
  EXPECT_THAT(error_of([&] { train(folder / "run", {"model.encoder.mlp_dim=16"}, true); }),
              HasSubstr("'model.encoder.mlp_dim'"));
  train(folder / "run", {"num_loader_threads=2", "checkpoint_every=3", "num_checkpoints=3"}, true);
  EXPECT_EQ(bits(reference()), bits(folder / "run"));
}

TEST_F(Resume, AnEmptyFolderBeginsTheRun) {
  EXPECT_EQ(train(folder / "run", {}, true).steps, 12);
  expect_equal_bits(reference(), folder / "run");
}

void expect_saved(const TrainResult& result) {
  EXPECT_EQ(result.checkpoint.filename(), "step_" + std::to_string(result.steps));
  load_checkpoint(result.checkpoint);
}

TEST_F(Resume, AfterASignalInTheMidstOfAStep) {
  for (const int image : {0, 3, 4, 15, 23, 24, 35, 36, 53}) {
    SCOPED_TRACE(image);
    TempDir folder;
    const TrainResult stopped =
        train_until(config_of(four_phases()), options_for(folder / "run"), "train", image, SIGINT);
    EXPECT_EQ(stopped.signal, SIGINT);
    EXPECT_EQ(stopped.steps, image < 36 ? image / 4 + 1 : 9 + (image - 36) / 6 + 1);
    expect_saved(stopped);
    EXPECT_EQ(train(folder / "run", {}, true).signal, 0);
    expect_equal_bits(reference(), folder / "run");
  }
}

TEST_F(Resume, AfterASignalInTheMidstOfAnEvaluation) {
  const std::vector<int64_t> steps = {4, 6, 9, 9, 12};  // when the five evaluations happen
  for (int image = 0; image < 45; image += 4) {
    SCOPED_TRACE(image);
    TempDir folder;
    const TrainResult stopped =
        train_until(config_of(four_phases()), options_for(folder / "run"), "test", image);
    EXPECT_EQ(stopped.signal, SIGTERM);
    EXPECT_EQ(stopped.steps, steps.at(static_cast<size_t>(image) / 9));
    expect_saved(stopped);
    train(folder / "run", {}, true);
    expect_equal_bits(reference(), folder / "run");
  }
}

TEST_F(Resume, AfterASignalInEverySingleStep) {
  const RunConfig config = config_of(four_phases());
  int stops = 0;
  while (train_until(config, options_for(folder / "run", stops > 0), "train", 1).signal ==
         SIGTERM) {
    ASSERT_LE(++stops, 12);
  }
  EXPECT_EQ(stops, 12);
  expect_equal_bits(reference(), folder / "run");
}

// The checkpoint itself is small, so that nothing else would stop it.
TEST_F(Resume, ChecksTheMemoryAgain) {
  train(folder / "run");
  const std::vector<std::string> huge = {"model.encoder.mlp_dim=1048576",
                                         "model.encoder.moe.num_experts=65536"};
  RunConfig config = config_of(four_phases(), huge);
  config.model = Value::from_json(build_initial_meta_model(config)->config(), "model");
  write_atomic(folder / "run/config.json", to_json(config).dump());
  EXPECT_THAT(error_of([&] { train(folder / "run", huge, true); }),
              AllOf(HasSubstr("training a model of"), HasSubstr("of memory")));
}

}  // namespace
}  // namespace moesaic
