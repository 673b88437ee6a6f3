// SPDX-License-Identifier: Apache-2.0
// Checkpoints that several processes write: the same network, whatever their number.
#include "moesaic/checkpoint/save.h"

#include <torch/torch.h>

#include <functional>
#include <iterator>

#include "base/support.h"
#include "checkpoint/mapping.h"
#include "checkpoint/shards.h"
#include "moesaic/checkpoint/store.h"
#include "support/matchers.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
using test::failure_of;
using test::get;
using test::put;
using test::usage_of;
using testing::kOptimizerIndex;
using testing::kWeightsIndex;
using testing::lies_in_file;
using testing::save_in_parts;
using testing::shard;
using Parts = test::InFolder;

/// Two stacked experts' tensors of 5 rows, which 4 parts cannot share evenly, and others.
Checkpoint stacked(int64_t step = 7) {
  return {.config = Json::parse(R"({"model": {"name": "m"}, "data": "d"})"),
          .state = {{"step", step}},
          .model = {{"moe.w1", at::arange(30, at::kFloat).view({5, 2, 3}) + step},
                    {"moe.b1", at::arange(10, at::kDouble).view({5, 2})},
                    {"head", at::arange(4, at::kDouble)},
                    {"scale", at::tensor(step)}},
          .optimizer = {{"moe.w1.momentum", at::full({5, 2, 3}, 0.5)},
                        {"head.momentum", at::full({4}, 0.25)}}};
}

void expect_same_tensors(const TensorMap& found, const TensorMap& wanted) {
  ASSERT_EQ(found.size(), wanted.size());
  for (const auto& [name, tensor] : wanted) {
    ASSERT_TRUE(found.contains(name)) << name;
    EXPECT_EQ(found.at(name).scalar_type(), tensor.scalar_type()) << name;
    EXPECT_TRUE(at::equal(found.at(name), tensor)) << name;
    EXPECT_TRUE(found.at(name).is_contiguous()) << name;
  }
}

/// A checkpoint of two parts whose tensors a test chooses; load_checkpoint() finds them as written.
class TwoParts : public ::testing::Test {
 protected:
  std::string publish_failure(const TensorMap& first, const TensorMap& second) {
    StagedDirectory staged(folder_ / "a");
    const std::vector<WrittenShard> parts = {write_shard(staged.path(), 0, 2, {first, {}}),
                                             write_shard(staged.path(), 1, 2, {second, {}})};
    return failure_of([&] { publish(staged, parts, stacked().config, stacked().state); });
  }

  /// Writes a sound checkpoint's parts, which are not published.
  static std::vector<WrittenShard> write_parts(const StagedDirectory& staged) {
    return {write_shard(staged.path(), 0, 2, shard(stacked(), 0, 2)),
            write_shard(staged.path(), 1, 2, shard(stacked(), 1, 2))};
  }

  /// Loads a sound checkpoint whose index was changed, unverified as a stranger's would be.
  std::string failure_with_index(const std::function<void(Json&)>& change) {
    save_in_parts(folder_ / "a", stacked(), 2);
    const fs::path path = folder_ / "a" / kWeightsIndex;
    Json index = Json::parse(get(path));
    change(index);
    put(path, index.dump());
    return failure_of([&] { read_tensors(path); });
  }
  /// The same where one entry of its map was set.
  std::string failure_with_entry(const char* tensor, const Json& file) {
    return failure_with_index([&](Json& index) { index["weight_map"][tensor] = file; });
  }

  const test::TempDir folder_;
};

TEST(SliceName, IsReadBack) {
  EXPECT_EQ(slice_name({"moe.w1", 2, 5}), "moe.w1[2:5]");
  const auto slice = parse_slice("moe.w1[2:5]");
  ASSERT_TRUE(slice);
  EXPECT_EQ(slice->name, "moe.w1");
  EXPECT_EQ(slice->first, 2);
  EXPECT_EQ(slice->end, 5);
  EXPECT_EQ(parse_slice("a[b][0:1]")->name, "a[b]");
  for (const char* name :
       {"w", "w[1]", "w[1:]", "w[:1]", "w[2:2]", "w[3:2]", "w[-1:2]", "w[0:2] ", "w[00:2]", "w[0:2",
        "w0:2]", "w[0:99999999999999999999]", "", "]", "[:]", ":]["}) {
    EXPECT_FALSE(parse_slice(name)) << name;
  }
}

TEST(WrittenPartText, IsReadBack) {
  const WrittenShard shard{
      .index = 2, .num_shards = 4, .files = {{"a", {7, "0f"}}, {"b", {0, ""}}}};
  const WrittenShard back = parse_written_shard(to_text(shard));
  EXPECT_EQ(to_text(back), to_text(shard));
  EXPECT_EQ(back.files.at("a").size, 7);
  EXPECT_EQ(to_text(shard).find('\n'), std::string::npos);
  EXPECT_THAT(failure_of([] { parse_written_shard("{"); }), HasSubstr("a shard of a checkpoint"));
  EXPECT_THAT(failure_of([] { parse_written_shard(R"({"index": -1, "count": 1, "files": {}})"); }),
              HasSubstr("index"));
}

TEST_F(Parts, AreTheCheckpointOfOneProcess) {
  for (const int64_t count : {2, 3, 4, 7}) {
    SCOPED_TRACE(count);
    save_in_parts(folder / "a", stacked(), count);
    for (const bool mapped : {false, true}) {
      const Checkpoint loaded = load_checkpoint(folder / "a", {.mmap = mapped});
      expect_same_tensors(loaded.model, stacked().model);
      expect_same_tensors(loaded.optimizer, stacked().optimizer);
      EXPECT_EQ(loaded.state.dump(), stacked().state.dump());
    }
    EXPECT_TRUE(load_checkpoint(folder / "a", {.load_optimizer = false}).optimizer.empty());
    EXPECT_TRUE(load_checkpoint(folder / "a", {.load_model = false}).model.empty());
  }
  save_checkpoint(folder / "one", load_checkpoint(folder / "a"));
  save_checkpoint(folder / "same", stacked());
  EXPECT_EQ(get(folder / "one/MANIFEST.json"), get(folder / "same/MANIFEST.json"));
}

TEST_F(Parts, OnePartIsTheCheckpointToTheByte) {
  save_checkpoint(folder / "a", stacked());
  save_in_parts(folder / "b", stacked(), 1);
  for (const auto& entry : fs::directory_iterator(folder / "a")) {
    const std::string name = entry.path().filename().string();
    EXPECT_EQ(get(entry.path()), get(folder / "b" / name)) << name;
  }
  EXPECT_EQ(std::distance(fs::directory_iterator(folder / "b"), {}), 5);
}

TEST_F(Parts, FilesAndIndexAreNamedAsUsersOfHuggingFaceKnowThem) {
  save_in_parts(folder / "a", stacked(), 2);
  const std::vector<std::string> names = test::names_in(folder / "a");
  EXPECT_THAT(names,
              ElementsAre("MANIFEST.json", "config.json", "model-00001-of-00002.safetensors",
                          "model-00002-of-00002.safetensors", kWeightsIndex,
                          "optimizer-00001-of-00002.safetensors",
                          "optimizer-00002-of-00002.safetensors", kOptimizerIndex, "state.json"));
  const Json index = Json::parse(get(folder / "a" / kWeightsIndex));
  EXPECT_EQ(index.at("metadata").at("total_size"), 30 * 4 + 10 * 8 + 4 * 8 + 8);
  EXPECT_EQ(index.at("weight_map").at("moe.w1[2:5]"), "model-00002-of-00002.safetensors");
  EXPECT_EQ(index.at("weight_map").at("head"), "model-00001-of-00002.safetensors");
  const Json manifest = Json::parse(get(folder / "a/MANIFEST.json"));
  EXPECT_EQ(manifest.at("files").size(), names.size() - 1);
}

TEST_F(Parts, EachPieceThatIsWrittenAndEachFileThatIsPublishedIsProgress) {
  StagedDirectory staged(folder / "a");
  int calls = 0;
  const at::Tensor large = at::ones({3 << 20}, at::kByte);  // A tensor of more than one piece.
  const WrittenShard shard =
      write_shard(staged.path(), 0, 1, {{{"w", large}}, {}}, [&] { ++calls; });
  EXPECT_GE(calls, 3);
  calls = 0;
  publish(staged, {shard}, stacked().config, stacked().state, [&] { ++calls; });
  EXPECT_GE(calls, 1);
}

TEST_F(Parts, APartWithoutTensorsOfAKindHasNoFileOfIt) {
  StagedDirectory staged(folder / "a");
  const WrittenShard all = write_shard(staged.path(), 0, 3, {stacked().model, {}});
  const WrittenShard none = write_shard(staged.path(), 1, 3, {});
  const WrittenShard last = write_shard(staged.path(), 2, 3, {{}, stacked().optimizer});
  EXPECT_TRUE(none.files.empty());
  publish(staged, {last, none, all}, stacked().config, stacked().state);  // In any order.
  const Checkpoint loaded = load_checkpoint(folder / "a");
  expect_same_tensors(loaded.model, stacked().model);
  expect_same_tensors(loaded.optimizer, stacked().optimizer);
}

TEST_F(Parts, ReplaceACheckpointOfAnotherNumberOfProcesses) {
  for (const int64_t count : {4, 1, 2}) {
    save_in_parts(folder / "a", stacked(count), count);
    const Checkpoint loaded = load_newest_checkpoint(folder / "a");
    EXPECT_EQ(loaded.state["step"], count);
    expect_same_tensors(loaded.model, stacked(count).model);
    EXPECT_THAT(folder.names(), ElementsAre("a"));
  }
}

TEST_F(Parts, OnlyWhatIsSlicedIsCopiedWhereFilesAreMapped) {
  save_in_parts(folder / "a", stacked(), 2);
  const TensorMap mapped = load_checkpoint(folder / "a", {.mmap = true}).model;
  const fs::path file = folder / "a/model-00001-of-00002.safetensors";
  EXPECT_TRUE(lies_in_file(mapped.at("head"), file));
  EXPECT_TRUE(lies_in_file(mapped.at("scale"), file));
  EXPECT_FALSE(lies_in_file(mapped.at("moe.w1"), file));
}

TEST_F(Parts, EveryDamageOfAFileIsFound) {
  save_in_parts(folder / "a", stacked(), 2);
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(folder / "a")) files.push_back(entry.path());
  for (const fs::path& file : files) {
    const std::string name = file.filename().string(), original = get(file);
    for (size_t i = 0; i < original.size(); i += 7) {
      std::string flipped = original;
      flipped[i] = static_cast<char>(flipped[i] ^ (1 << (i % 8)));
      put(file, flipped);
      failure_of([&] { load_checkpoint(folder / "a"); });
      if (HasFailure()) FAIL() << name << " byte " << i;
    }
    put(file, original.substr(0, original.size() / 2));
    failure_of([&] { load_checkpoint(folder / "a"); });
    fs::rename(file, folder / "aside");
    EXPECT_THAT(failure_of([&] { load_checkpoint(folder / "a"); }), HasSubstr(name));
    fs::rename(folder / "aside", file);
    put(file, original);
  }
  EXPECT_NO_THROW(load_checkpoint(folder / "a"));
}

TEST_F(Parts, OptimizersFilesAreLeftAloneWhereTheyAreNotWanted) {
  save_in_parts(folder / "a", stacked(), 2);
  const fs::path file = folder / "a/optimizer-00002-of-00002.safetensors";
  std::string bytes = get(file);
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  put(file, bytes);
  EXPECT_THAT(failure_of([&] { load_checkpoint(folder / "a"); }), HasSubstr("altered"));
  EXPECT_NO_THROW(load_checkpoint(folder / "a", {.load_optimizer = false}));
  EXPECT_EQ(load_checkpoint(folder / "a", {.verify = false}).optimizer.size(), 2u);
}

TEST_F(Parts, TheManifestListsOneFormAndAllFiles) {
  save_in_parts(folder / "a", stacked(), 2);
  const fs::path path = folder / "a/MANIFEST.json";
  const Json manifest = Json::parse(get(path));
  const auto with = [&](auto change) {
    Json changed = manifest;
    change(changed["files"]);
    put(path, changed.dump(2));
    return failure_of([&] { load_checkpoint(folder / "a"); });
  };
  EXPECT_THAT(with([](Json& files) { files.erase("model-00002-of-00002.safetensors"); }),
              AllOf(HasSubstr("MANIFEST.json: 'model-00002-of-00002.safetensors', which"),
                    HasSubstr(std::string(kWeightsIndex) + "' names, is not listed")));
  EXPECT_THAT(with([](Json& files) { files["model.safetensors"] = files["state.json"]; }),
              HasSubstr("are both listed"));
  EXPECT_THAT(with([](Json& files) { files.erase(kWeightsIndex); }),
              HasSubstr("neither 'model.safetensors' nor "));
  EXPECT_THAT(with([](Json& files) { files.erase(kOptimizerIndex); }),
              HasSubstr("'optimizer.safetensors.index.json' is there but not listed"));
  put(folder / "a/model.safetensors", "of another checkpoint");
  EXPECT_THAT(with([](Json&) {}), HasSubstr("'model.safetensors' is there but not listed"));
}

TEST_F(TwoParts, PublishNothingThatCouldNotBeRead) {
  const at::Tensor rows = at::ones({2, 3});
  EXPECT_THAT(publish_failure({{"w", rows}}, {{"w", rows}}),
              HasSubstr("tensor 'w' is in 'model-00001-of-00002.safetensors' and in "
                        "'model-00002-of-00002.safetensors'"));
  EXPECT_THAT(publish_failure({{"w[0:2]", rows}}, {{"w[3:5]", rows}}),
              HasSubstr("slices of tensor 'w' leave a gap: after row 2 comes 'w[3:5]' in "
                        "'model-00002-of-00002.safetensors'"));
  EXPECT_THAT(publish_failure({{"w[1:3]", rows}}, {}), HasSubstr("leave a gap: after row 0"));
  EXPECT_THAT(publish_failure({{"w[0:2]", rows}}, {{"w[1:3]", rows}}),
              HasSubstr("slices of tensor 'w' overlap"));
  EXPECT_THAT(publish_failure({{"w[0:2]", rows}}, {{"w[0:2]", rows}}), HasSubstr("'w[0:2]' is in"));
  EXPECT_THAT(publish_failure({{"w[0:2]", rows}}, {{"w[2:4]", rows.to(at::kHalf)}}),
              HasSubstr("slices of tensor 'w' differ: 'model-00001-of-00002.safetensors' has F32 "
                        "[2, 3], 'model-00002-of-00002.safetensors' has F16 [2, 3]"));
  EXPECT_THAT(publish_failure({{"w[0:2]", rows}}, {{"w[2:4]", at::ones({2, 4})}}),
              HasSubstr("F32 [2, 4]"));
  EXPECT_THAT(publish_failure({{"w[0:2]", rows}}, {{"w[2:4]", at::ones({2})}}),
              HasSubstr("F32 [2]"));
  EXPECT_THAT(publish_failure({{"w[0:2]", rows}}, {{"w[2:5]", rows}}),
              HasSubstr("'w[2:5]': its name says 3 rows, it is F32 [2, 3]"));
  EXPECT_THAT(publish_failure({{"w[0:1]", at::scalar_tensor(1.0, at::kDouble)}}, {}),
              HasSubstr("it is F64 []"));
  EXPECT_THAT(publish_failure({{"w[0:2]", rows}}, {{"w", rows}}),
              HasSubstr("tensor 'w' is whole in 'model-00002-of-00002.safetensors' and as "
                        "'w[0:2]' in 'model-00001-of-00002.safetensors'"));
  EXPECT_TRUE(folder_.names().empty());
}

TEST_F(TwoParts, AnIndexSaysWhatIsThere) {
  const char* const second = "model-00002-of-00002.safetensors";
  EXPECT_THAT(failure_with_index([](Json& index) { index["weight_map"].erase("head"); }),
              HasSubstr("tensor 'head' is not listed in 'model.safetensors.index.json'"));
  EXPECT_THAT(failure_with_entry("head", second),
              HasSubstr("tensor 'head' is in 'model-00002-of-00002.safetensors' too"));
  EXPECT_THAT(failure_with_entry("more", second),
              HasSubstr("tensor 'more' is not in 'model-00002-of-00002.safetensors'"));
  EXPECT_THAT(failure_with_entry("head", "x.safetensors"),
              HasSubstr("index.json: 'x.safetensors' is not there"));
  EXPECT_THAT(failure_with_index([](Json& index) { index.erase("weight_map"); }),
              HasSubstr("missing key 'weight_map'"));
  EXPECT_THAT(failure_with_entry("head", 3), HasSubstr("weight_map"));
  EXPECT_THAT(failure_with_index([](Json& index) { index = "text"; }),
              HasSubstr("must be an object"));
}

TEST_F(TwoParts, AnIndexNamesFilesBesideItOnly) {
  for (const char* name : {"../model.safetensors", "/etc/passwd", "a/b.safetensors", "..", ".", "",
                           ".hidden.safetensors", "model.bin", "model.safetensors.index.json"}) {
    EXPECT_THAT(failure_with_entry("head", name),
                HasSubstr("must name a .safetensors file in the same folder"))
        << name;
  }
}

TEST_F(TwoParts, AnIndexWithATensorTwiceIsRefused) {
  put(folder_ / kWeightsIndex, R"({"weight_map": {"w": "a.safetensors", "w": "b.safetensors"}})");
  EXPECT_THAT(failure_of([&] { read_tensors(folder_ / kWeightsIndex); }),
              HasSubstr("is given twice"));
}

TEST_F(TwoParts, AStrangersFilesAreReadByTheirIndex) {
  write_tensors(folder_ / "x.safetensors", {{"a", at::ones({2})}}, {{"format", "pt"}});
  write_tensors(folder_ / "y.safetensors", {{"b", at::zeros({3})}});
  put(folder_ / kWeightsIndex,
      R"({"metadata": {"total_size": 20, "by": "someone"},
          "weight_map": {"a": "x.safetensors", "b": "y.safetensors"}})");
  expect_same_tensors(read_tensors(folder_ / kWeightsIndex),
                      {{"a", at::ones({2})}, {"b", at::zeros({3})}});
}

TEST_F(TwoParts, AreEachThereOnce) {
  StagedDirectory staged(folder_ / "a");
  const Checkpoint all = stacked();
  const std::vector<WrittenShard> parts = write_parts(staged);
  const WrittenShard& first = parts[0];
  const auto usage = [&](const std::vector<WrittenShard>& parts) {
    return usage_of([&] { publish(staged, parts, all.config, all.state); });
  };
  EXPECT_THAT(usage({}), HasSubstr("no shard to publish"));
  EXPECT_THAT(usage({first}), HasSubstr("1 shard to publish, one of which is of 2"));
  EXPECT_THAT(usage({first, first}), HasSubstr("shard 0 is there twice"));
  EXPECT_THAT(usage({first, {.index = 2, .num_shards = 2}}), HasSubstr("has no shard 2"));
  EXPECT_THAT(usage_of([&] { write_shard(staged.path(), 2, 2, {}); }), HasSubstr("has no shard 2"));
  EXPECT_THAT(usage_of([&] {
                write_shard(staged.path(), 0, 1, {{{"w[0:2]", at::ones({2})}}, {}});
              }),
              HasSubstr("has whole tensors"));
  EXPECT_FALSE(fs::exists(folder_ / "a"));
  publish(staged, parts, all.config, all.state);
  EXPECT_NO_THROW(load_checkpoint(folder_ / "a"));
}

TEST_F(TwoParts, AFileThatIsCutOrGoneIsNotPublished) {
  for (const bool gone : {false, true}) {
    StagedDirectory staged(folder_ / "a");
    const std::vector<WrittenShard> parts = write_parts(staged);
    const fs::path file = staged.path() / "optimizer-00002-of-00002.safetensors";
    gone ? void(fs::remove(file)) : fs::resize_file(file, fs::file_size(file) - 1);
    EXPECT_THAT(failure_of([&] { publish(staged, parts, stacked().config, stacked().state); }),
                AllOf(HasSubstr("optimizer-00002-of-00002.safetensors"),
                      HasSubstr(gone ? "is missing" : "bytes")));
    EXPECT_FALSE(fs::exists(folder_ / "a"));
  }
}

TEST_F(TwoParts, AFullDiskLeavesTheOldOne) {
  save_in_parts(folder_ / "a", stacked(1), 2);
  {
    StagedDirectory staged(folder_ / "a");
    const test::FileSizeLimit limit(64);
    EXPECT_THAT(failure_of([&] { write_shard(staged.path(), 1, 2, shard(stacked(2), 1, 2)); }),
                AllOf(HasSubstr("model-00002-of-00002.safetensors"), HasSubstr("cannot write")));
  }
  EXPECT_THAT(folder_.names(), ElementsAre("a"));
  EXPECT_EQ(load_checkpoint(folder_ / "a").state["step"], 1);
}

TEST_F(TwoParts, WhatKilledProcessesLeftIsNoCheckpointAndGoes) {
  save_in_parts(folder_ / "run/checkpoints/step_1", stacked(1), 2);
  const fs::path checkpoints = folder_ / "run/checkpoints";
  // A staging folder with one part that is whole and one that is half written.
  const fs::path left = unique_sibling(checkpoints / "step_2");
  fs::create_directory(left);
  write_shard(left, 0, 2, shard(stacked(2), 0, 2));
  put(unique_sibling(left / "model-00002-of-00002.safetensors"), "half");
  EXPECT_EQ(load_newest_checkpoint(folder_ / "run").state["step"], 1);
  remove_leftovers(checkpoints);
  EXPECT_FALSE(fs::exists(left));
  EXPECT_EQ(std::distance(fs::directory_iterator(checkpoints), {}), 1);
}

}  // namespace
}  // namespace moesaic
