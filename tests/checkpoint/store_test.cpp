// SPDX-License-Identifier: Apache-2.0
#include "moesaic/checkpoint/store.h"

#include <torch/torch.h>

#include <algorithm>
#include <optional>

#include "base/support.h"
#include "moesaic/base/file.h"
#include "moesaic/base/hash.h"
#include "support/matchers.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
using test::failure_of;
using test::get;
using test::put;
using test::usage_of;
using Store = test::InFolder;
using Resolve = test::InFolder;
using LoadCheckpoint = test::InFolder;

const std::vector<std::string> kFiles = {"MANIFEST.json", "config.json", "model.safetensors",
                                         "optimizer.safetensors", "state.json"};

Checkpoint example(int64_t step = 7) {
  return {.config = Json::parse(R"({"model": {"name": "m", "x": [1, 2]}, "data": "d"})"),
          .state = {{"step", step}, {"rng", 18446744073709551615u}, {"best", 0.1}},
          .model = {{"w", at::arange(6, at::kFloat).view({2, 3})}, {"n", at::tensor(step)}},
          .optimizer = {{"w.momentum", at::full({2, 3}, 0.5)}}};
}

Checkpoint without_optimizer(int64_t step) {
  Checkpoint checkpoint = example(step);
  checkpoint.optimizer.clear();
  return checkpoint;
}

/// A file that is altered while this lives.
class Altered {
 public:
  Altered(const fs::path& path, const std::string& content) : path_(path), original_(get(path)) {
    put(path_, content);
  }
  Altered(const Altered&) = delete;
  Altered& operator=(const Altered&) = delete;
  ~Altered() { put(path_, original_); }

 private:
  fs::path path_;
  std::string original_;
};

fs::path newest_folder(const fs::path& run_or_checkpoint) {
  return load_newest_checkpoint(run_or_checkpoint).folder;
}

std::string load_failure(const fs::path& folder, const LoadOptions& options = {}) {
  return failure_of([&] { load_checkpoint(folder, options); });
}

/// The error of loading the folder while one of its files has another content.
std::string error_with(const fs::path& folder, const std::string& name,
                       const std::string& content) {
  const Altered altered(folder / name, content);
  return load_failure(folder);
}

void flip_last_bit(const fs::path& file) {
  std::string bytes = get(file);
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  put(file, bytes);
}

TEST_F(Store, RoundTrip) {
  const Checkpoint saved = example();
  save_checkpoint(folder / "run/checkpoints/step_7", saved);
  const fs::path place = folder / "run/checkpoints/step_7";
  const Checkpoint loaded = load_checkpoint(place);
  EXPECT_EQ(loaded.state.dump(), saved.state.dump());
  EXPECT_EQ(
      loaded.config.dump(),
      R"({"format":"moesaic-checkpoint","version":1,"model":{"name":"m","x":[1,2]},"data":"d"})");
  ASSERT_EQ(loaded.model.size(), 2u);
  EXPECT_TRUE(at::equal(loaded.model.at("w"), saved.model.at("w")));
  EXPECT_EQ(loaded.model.at("n").item<int64_t>(), 7);
  EXPECT_TRUE(at::equal(loaded.optimizer.at("w.momentum"), saved.optimizer.at("w.momentum")));

  save_checkpoint(folder / "again", loaded);
  EXPECT_EQ(get(folder / "again/MANIFEST.json"), get(place / "MANIFEST.json"));
}

TEST_F(Store, HasOnlyItsFiles) {
  save_checkpoint(folder / "a", example());
  save_checkpoint(folder / "b", without_optimizer(7));
  EXPECT_THAT(folder.names(), ElementsAre("a", "b"));
  EXPECT_EQ(test::names_in(folder / "a"), kFiles);
  EXPECT_FALSE(fs::exists(folder / "b/optimizer.safetensors"));
  EXPECT_TRUE(load_checkpoint(folder / "b").optimizer.empty());
}

TEST_F(Store, ReplacesTheOldOneAtomically) {
  save_checkpoint(folder / "a", example(1));
  save_checkpoint(folder / "a", without_optimizer(2));
  EXPECT_EQ(load_checkpoint(folder / "a").state["step"], 2);
  EXPECT_TRUE(load_checkpoint(folder / "a").optimizer.empty());
  EXPECT_THAT(folder.names(), ElementsAre("a"));
}

TEST_F(Store, AFailedSaveLeavesNothingBehind) {
  save_checkpoint(folder / "a", example(1));
  Checkpoint bad = example(2);
  bad.state["text"] = "\xFF";
  EXPECT_THAT(failure_of([&] { save_checkpoint(folder / "a", bad); }), HasSubstr("state.json"));
  bad = example(2);
  bad.optimizer["x"] = at::Tensor();
  EXPECT_THAT(failure_of([&] { save_checkpoint(folder / "a", bad); }), HasSubstr("undefined"));
  bad.config = Json::object();
  EXPECT_THAT(usage_of([&] { save_checkpoint(folder / "b", bad); }), HasSubstr("'model'"));
  {
    const test::FileSizeLimit limit(64);
    failure_of([&] { save_checkpoint(folder / "a", example(2)); });
  }
  EXPECT_THAT(folder.names(), ElementsAre("a"));
  EXPECT_EQ(load_checkpoint(folder / "a").state["step"], 1);
}

TEST_F(Store, EveryFlippedBitIsFound) {
  save_checkpoint(folder / "a", example());
  for (const std::string& name : kFiles) {
    const std::string original = get(folder / "a" / name);
    for (size_t i = 0; i < original.size(); i += 3) {
      std::string flipped = original;
      flipped[i] = static_cast<char>(flipped[i] ^ (1 << (i % 8)));
      error_with(folder / "a", name, flipped);
      if (HasFailure()) FAIL() << name << " byte " << i;
    }
  }
  EXPECT_NO_THROW(load_checkpoint(folder / "a"));
}

TEST_F(Store, EveryTruncationIsFound) {
  save_checkpoint(folder / "a", example());
  for (const std::string& name : kFiles) {
    const std::string original = get(folder / "a" / name);
    for (size_t size = original.size() - 1; size > 0; size -= std::min<size_t>(size, 5)) {
      error_with(folder / "a", name, original.substr(0, size));
      if (HasFailure()) FAIL() << name << " cut to " << size;
    }
    if (name != "MANIFEST.json") error_with(folder / "a", name, original + " ");
    fs::rename(folder / "a" / name, folder / "aside");
    EXPECT_THAT(load_failure(folder / "a"), HasSubstr(name));
    fs::rename(folder / "aside", folder / "a" / name);
  }
}

TEST_F(Store, MessagesNameFileExpectedAndFound) {
  const fs::path place = folder / "a";
  save_checkpoint(place, example());
  const std::string state = get(place / "state.json");
  EXPECT_EQ(error_with(place, "state.json", state + "x"),
            fmt::format("{}: the file has {} bytes, MANIFEST.json says {}",
                        (place / "state.json").string(), state.size() + 1, state.size()));
  std::string other = state;
  other[other.find('7')] = '8';
  EXPECT_THAT(error_with(place, "state.json", other),
              AllOf(HasSubstr((place / "state.json").string() + ": the file was altered"),
                    HasSubstr("SHA-256 is "), HasSubstr("MANIFEST.json says ")));
  fs::remove(place / "MANIFEST.json");
  EXPECT_THAT(load_failure(place), HasSubstr("MANIFEST.json is missing"));
}

TEST_F(Store, RefusesForeignManifests) {
  const fs::path place = folder / "a";
  save_checkpoint(place, example());
  const Json manifest = Json::parse(get(place / "MANIFEST.json"));
  const auto with = [&](auto change) {
    Json changed = manifest;
    change(changed);
    return error_with(place, "MANIFEST.json", changed.dump(2));
  };
  EXPECT_THAT(with([](Json& m) {
                m["version"] = 2;
                m["new"] = 1;
              }),
              HasSubstr("has version 2, this program reads version 1"));
  EXPECT_THAT(with([](Json& m) { m["format"] = "other"; }), HasSubstr("the format is 'other'"));
  EXPECT_THAT(with([](Json& m) { m.erase("version"); }), HasSubstr("missing key 'version'"));
  EXPECT_THAT(with([](Json& m) { m["files"].erase("config.json"); }),
              HasSubstr("'config.json' is not listed"));
  EXPECT_THAT(with([](Json& m) { m["files"].erase("optimizer.safetensors"); }),
              HasSubstr("'optimizer.safetensors' is there but not listed"));
  EXPECT_THAT(with([](Json& m) { m["files"]["../b"] = m["files"]["config.json"]; }),
              HasSubstr("'../b' is not a file name"));
  EXPECT_THAT(with([](Json& m) { m["files"]["config.json"]["size"] = -1; }),
              HasSubstr("must be at least 0"));
  EXPECT_THAT(error_with(place, "MANIFEST.json", "[]"), HasSubstr("must be an object"));
}

TEST_F(Store, CanLeaveOutHashesTensorsAndOptimizer) {
  save_checkpoint(folder / "a", example());
  flip_last_bit(folder / "a/optimizer.safetensors");
  EXPECT_THAT(load_failure(folder / "a"), HasSubstr("altered"));
  EXPECT_TRUE(load_checkpoint(folder / "a", {.load_optimizer = false}).optimizer.empty());
  EXPECT_EQ(load_checkpoint(folder / "a", {.verify = false}).optimizer.size(), 1u);
  const LoadOptions texts = {.load_model = false, .load_optimizer = false};
  const Checkpoint loaded = load_checkpoint(folder / "a", texts);
  EXPECT_TRUE(loaded.model.empty());
  EXPECT_EQ(loaded.state.dump(), example().state.dump());
  flip_last_bit(folder / "a/model.safetensors");
  EXPECT_THAT(load_failure(folder / "a", texts), HasSubstr("altered"));
}

TEST_F(Resolve, StepsAreReadOffTheirFoldersNames) {
  EXPECT_EQ(step_name(12), "step_12");
  EXPECT_EQ(step_of("run/checkpoints/step_12"), 12);
  EXPECT_EQ(step_of("step_0"), 0);
  for (const char* name : {"step_", "step_x", "step_1x", "step_-1", "best", "mystep_1", "step_007",
                           "step_99999999999999999999"}) {
    EXPECT_FALSE(step_of(name)) << name;
  }
}

TEST_F(Resolve, TakesTheLargestStepOfARun) {
  const fs::path checkpoints = folder / "run/checkpoints";
  for (const char* name : {"step_9", "step_10", "step_100", "finetune", "step_x", "step_"}) {
    save_checkpoint(checkpoints / name, example());
  }
  EXPECT_EQ(newest_folder(folder / "run"), checkpoints / "step_100");
  EXPECT_EQ(newest_folder(checkpoints), checkpoints / "step_100");
  EXPECT_EQ(newest_folder(checkpoints / "step_9"), checkpoints / "step_9");
  EXPECT_EQ(newest_folder(checkpoints / "finetune"), checkpoints / "finetune");
}

TEST_F(Resolve, PassesOverBrokenAndUnfinishedOnes) {
  const fs::path checkpoints = folder / "run/checkpoints";
  for (const char* name : {"step_1", "step_2", "step_3"}) {
    save_checkpoint(checkpoints / name, example());
  }
  fs::create_directory(checkpoints / "step_4");
  put(checkpoints / "step_4/model.safetensors", "half");
  fs::copy(checkpoints / "step_1", unique_sibling(checkpoints / "step_5"));
  put(checkpoints / "step_3/state.json", "{}");

  EXPECT_THAT(
      test::said_by([&] { EXPECT_EQ(newest_folder(folder / "run"), checkpoints / "step_2"); }),
      AllOf(HasSubstr("step_4"), HasSubstr("step_3/state.json"), HasSubstr("is skipped"),
            HasSubstr("step_2: this older checkpoint is read")));

  fs::remove(checkpoints / "step_1/config.json");
  fs::remove(checkpoints / "step_2/config.json");
  save_checkpoint(checkpoints / "train", example());
  save_checkpoint(folder / "run/best", example());
  EXPECT_THAT(failure_of([&] { newest_folder(folder / "run"); }),
              AllOf(HasSubstr("all of its 4 checkpoints of steps are corrupt"), HasSubstr("step_4"),
                    EndsWith("; other checkpoints: " + (folder / "run/best").string() + ", " +
                             (checkpoints / "train").string())));
}

TEST_F(Resolve, PassesOverNoneThatItCouldNotRead) {
  const fs::path checkpoints = folder / "run/checkpoints";
  for (const char* name : {"step_1", "step_2"}) save_checkpoint(checkpoints / name, example());
  fs::remove(checkpoints / "step_2/state.json");
  fs::create_symlink("state.json", checkpoints / "step_2/state.json");
  EXPECT_THAT(failure_of([&] { newest_folder(folder / "run"); }),
              AllOf(HasSubstr("step_2/state.json"), HasSubstr("step_2 may be intact")));
  fs::create_symlink("loop", folder / "loop");
  EXPECT_THAT(failure_of([&] { step_checkpoints(folder / "loop"); }), HasSubstr("cannot list"));
}

TEST_F(Resolve, FollowsALinkToACheckpointThatWasMoved) {
  const fs::path checkpoints = folder / "run/checkpoints";
  save_checkpoint(checkpoints / "step_1", example());
  save_checkpoint(folder / "disk/step_2", example());
  fs::create_directory_symlink(folder / "disk/step_2", checkpoints / "step_2");
  EXPECT_EQ(newest_folder(folder / "run"), checkpoints / "step_2");
  fs::create_directory_symlink("nowhere", checkpoints / "step_3");
  EXPECT_THAT(failure_of([&] { newest_folder(folder / "run"); }),
              HasSubstr("step_3: a link that leads to no folder"));
}

TEST_F(LoadCheckpoint, ReadsAStateOfMoreThanAMegabyte) {
  Checkpoint checkpoint = example();
  checkpoint.state["replaced"] = std::vector<int64_t>(200'000, 10'000'000);
  save_checkpoint(folder / "a", checkpoint);
  EXPECT_EQ(load_checkpoint(folder / "a").state.at("replaced").size(), 200'000U);
}

TEST_F(Resolve, SaysWhatAPathIsNot) {
  fs::create_directories(folder / "quickstart/checkpoints/step_1");
  fs::create_directories(folder / "quikstarts");  // It is no run.
  put(folder / "file", "x");
  const auto usage = [&](const char* path) {
    return usage_of([&] { newest_folder(folder / path); });
  };
  EXPECT_THAT(usage("quikstart"), HasSubstr("no such file or folder; did you mean '" +
                                            (folder / "quickstart").string() + "'?"));
  EXPECT_THAT(usage("nowhere/at/all"), HasSubstr("no such file or folder"));
  EXPECT_THAT(usage("file"), HasSubstr("neither a folder"));
  EXPECT_THAT(usage("quikstarts"), HasSubstr("neither a checkpoint"));
}

TEST(PruneOldCheckpoints, KeepsTheNewestCompleteOnes) {
  const test::TempDir folder;
  for (const char* name : {"step_2", "step_10", "step_30", "step_4", "best", "finetune"}) {
    save_checkpoint(folder / name, example());
  }
  fs::create_directory(folder / "step_40");  // not complete: neither counted nor deleted
  fs::create_directory(folder / "step_3");
  save_checkpoint(folder / "step_007", example());  // not ours
  fs::create_directory_symlink(folder / "best", folder / "step_1");
  put(folder / "step_0", "a file");
  remove_old_checkpoints(folder.path(), 2);
  EXPECT_THAT(folder.names(), ElementsAre("best", "finetune", "step_0", "step_007", "step_1",
                                          "step_10", "step_3", "step_30", "step_40"));
  EXPECT_TRUE(fs::exists(folder / "best/MANIFEST.json"));
  remove_old_checkpoints(folder.path(), 5);
  EXPECT_EQ(folder.names().size(), 9u);
  EXPECT_THAT(usage_of([&] { remove_old_checkpoints(folder.path(), 0); }), HasSubstr("not 0"));
  EXPECT_NO_THROW(remove_old_checkpoints(folder / "absent", 1));
}

TEST_F(LoadCheckpoint, SaysThatADocumentIsNone) {
  save_checkpoint(folder / "a", {{{"model", nullptr}}, Json::object(), {}, {}});
  Json manifest = Json::parse(get(folder / "a/MANIFEST.json"));
  put(folder / "a/state.json", "");
  manifest["files"]["state.json"] = {{"size", 0}, {"sha256", sha256_hex({})}};
  put(folder / "a/MANIFEST.json", manifest.dump());
  EXPECT_THAT(load_failure(folder / "a"),
              HasSubstr("state.json: the text is empty, expected JSON"));
}

TEST(ResolveCheckpoint, PointsToTheRunsOfAnExperiment) {
  const test::TempDir folder;
  fs::create_directories(folder / "train/checkpoints");
  EXPECT_THAT(usage_of([&] { newest_folder(folder.path()); }),
              HasSubstr("an experiment holds runs, e.g. " + (folder / "train").string()));
}

}  // namespace
}  // namespace moesaic
