// SPDX-License-Identifier: Apache-2.0
// A stranger's documents of JSON, wherever one is read: too deep, of too many keys or too long,
// they end in one line, in memory in proportion.
#include <fmt/format.h>
#include <torch/torch.h>

#include "integration/program.h"
#include "moesaic/base/file.h"
#include "moesaic/base/hash.h"
#include "moesaic/checkpoint/tensors.h"
#include "moesaic/config/document.h"
#include "support/matchers.h"

namespace moesaic::testing {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

std::string nested(size_t depth) {
  return std::string(depth, '[') + std::string(depth, ']');
}

class Documents : public ProgramTest {
 protected:
  /// Writes a checkpoint of a small network, whose hashes are right whatever is in its documents.
  std::string checkpoint(const std::string& config, const std::string& state) const {
    const fs::path folder = path("checkpoint");
    fs::create_directories(folder);
    write_tensors(folder / "model.safetensors", {{"w", torch::zeros({1})}});
    write_atomic(folder / "config.json", std::string_view(config));
    write_atomic(folder / "state.json", std::string_view(state));
    ordered_json manifest = {{"format", "moesaic-checkpoint"}, {"version", 1}};
    for (const char* name : {"config.json", "model.safetensors", "state.json"}) {
      manifest["files"][name] = {{"size", fs::file_size(folder / name)},
                                 {"sha256", sha256_file_hex(folder / name)}};
    }
    write_atomic(folder / "MANIFEST.json", std::string_view(manifest.dump()));
    return folder.string();
  }

  /// Writes an export in one file.
  std::string exported(const std::string& key, const std::string& text) const {
    std::map<std::string, std::string> metadata = {{"config", R"({"name": "cluster-moe"})"},
                                                   {"labels", "[]"},
                                                   {"preprocess", R"({"images": false})"}};
    metadata[key] = text;
    write_tensors(path("export.safetensors"), {{"w", torch::zeros({1})}}, metadata);
    return text_path("export.safetensors");
  }

  /// Runs all subcommands that read a network.
  void expect_refused(const std::string& network, const std::string& text) const {
    for (const Strings& command : std::vector<Strings>{
             {"inspect", network},
             {"eval", network, "--data", "clusters-setting1"},
             {"predict", network, "--input", exported_images(), "--output", text_path("out")},
             {"export", network, "--format", "safetensors", "--out", text_path("new")},
             {"prune", "--finetuned", network, "--criterion", "magnitude", "--keep", "1", "--out",
              text_path("new")},
             {"bench", network}}) {
      const ProgramResult result = run_program(command);
      expect_one_line_error(result, 1, text);
      EXPECT_LT(result.peak_bytes, uint64_t{1} << 30);
    }
  }

 private:
  std::string exported_images() const {
    write_tensors(path("in.safetensors"), {{"images", torch::zeros({1, 1, 2, 2})}});
    return text_path("in.safetensors");
  }
};

TEST_F(Documents, NestingEndsInOneLine) {
  const std::string deep =
      "{\"model\": {\"name\": \"cluster-moe\"}, \"data\": " + nested(100'000) + "}";
  expect_refused(checkpoint(deep, "{}"), "config.json:1:");
  expect_refused(checkpoint("{\"model\": {}}", nested(100'000)), "state.json:1:201: ");
  for (const char* key : {"config", "labels", "preprocess", "evaluation"}) {
    expect_refused(exported(key, nested(200'000)),
                   fmt::format("export.safetensors ({}.json):1:201: ", key));
  }
}

TEST_F(Documents, LengthEndsInOneLine) {
  std::string zeros = "[0";
  while (zeros.size() < 8'000'000) zeros += ",0";
  zeros += "]";
  // A state lists the corrupt images of a run, which may be many.
  const std::string state = checkpoint("{\"model\": {}}", zeros);
  expect_refused(state, "more than 1000000 values in one document");
  write("checkpoint/MANIFEST.json", zeros);
  expect_refused(state, "bytes are more than a JSON document has (at most 1048576)");
  expect_refused(exported("labels", zeros), "more than 1000000 values in one document");
}

TEST_F(Documents, ManyKeysAreRead) {
  std::string keys = "{\"k\": 0";
  for (int i = 0; i < 60'000; ++i) keys += fmt::format(", \"{:06}\": 0", i);
  keys += "}";
  ASSERT_LT(keys.size(), kMaxDocumentBytes);
  const ProgramResult found =
      must_succeed({"inspect", checkpoint("{\"model\": {}}", keys), "--json"});
  EXPECT_EQ(found.json().at("state").size(), 60'001U);
}

TEST_F(Documents, ARunsAndAnExperimentsAreBoundedToo) {
  fs::create_directories(path("run"));
  write("run/config.json", nested(100'000));
  write("run/.lock", "");
  const ProgramResult train =
      run_program({"train", smoke_recipe(), "--out", text_path("run"), "--resume"});
  EXPECT_THAT(train.err, HasSubstr("config.json:1:201: "));
  EXPECT_EQ(train.exit_code, 1);
  write("description.json", nested(100'000));
  expect_usage_error({"data", "verify", text_path("description.json")}, "description.json:1:201: ");
}

TEST_F(Documents, CommandsOfTerminalsAreNotPrinted) {
  const std::string folder = checkpoint("{\"model\": {}}", "{}");
  ordered_json manifest = ordered_json::parse(read_text(path("checkpoint/MANIFEST.json")));
  manifest["files"]["\x1b]0;pwned\x07"] = {{"size", 0}, {"sha256", ""}};
  write("checkpoint/MANIFEST.json", manifest.dump());
  const ProgramResult result = run_program({"inspect", folder});
  expect_one_line_error(result, 1, "'\\x1b]0;pwned\\x07' is not a file name");
  EXPECT_EQ(result.err.find('\x1b'), std::string::npos);
  // Names of tensors have none either, also where a pager shows what a pipe gets.
  write_tensors(path("t.safetensors"),
                {{"w\x1b[31m", torch::zeros({1})}, {"v\nw\u202e", torch::zeros({1})}});
  const std::string program =
      fmt::format("'{}' inspect '{}'", MOESAIC_PROGRAM, text_path("t.safetensors"));
  const ProgramResult piped = run_command({"sh", "-c", program});
  EXPECT_THAT(piped.out, HasSubstr("w\\x1b[31m"));
  EXPECT_THAT(piped.out, HasSubstr("v\\nw\\xe2\\x80\\xae"));
  if (run_command({"sh", "-c", "command -v script"}).exit_code != 0) {
    GTEST_SKIP() << "needs script, of util-linux, for a terminal";
  }
  const ProgramResult shown = run_command({"script", "-qec", program, "/dev/null"});
  EXPECT_THAT(shown.out, HasSubstr("w\\x1b[31m"));
  EXPECT_THAT(shown.out, Not(HasSubstr("w\x1b[31m")));
}

TEST_F(Documents, NamesAndRangesOfShardsAreBounded) {
  const auto describe = [&](const std::string& names) {
    write("shards.json", R"({"name": "shards", "format": "shards", "classes": ["a"], "mean": [0.5],
        "std": [0.5], "urls": ["file:///nowhere/"], "shards": {"train": [)" +
                             names + "]}}");
    return text_path("shards.json");
  };
  const std::string long_name = "a." + std::string(300'000, 'b') + ".tar";
  expect_usage_error({"data", "fetch", describe("{\"name\": \"" + long_name + "\"}")},
                     "of at most 255 bytes, not 'a.bbb");
  std::string ranges;
  for (const char* letter : {"a", "b", "c", "d"}) {
    ranges += fmt::format("{}{{\"name\": \"{}{{000000..999999}}.tar\"}}",
                          ranges.empty() ? "" : ", ", letter);
  }
  const ProgramResult result = run_program({"data", "fetch", describe(ranges)});
  expect_one_line_error(result, 2,
                        "shards.train: more than 50000 files at 'a{000000..999999}.tar'");
  EXPECT_LT(result.peak_bytes,
            run_program({"data", "fetch", describe(R"({"name": "a.tar"})")}).peak_bytes +
                (uint64_t{64} << 20));
  // As many, and as long, as there may be: each name is held once.
  const auto verified = [&](const std::string& name) {
    return run_program({"data", "verify", describe(fmt::format(R"({{"name": "{}"}})", name))});
  };
  const ProgramResult many = verified("{00000..49998}" + std::string(236, 'x') + ".tar");
  expect_one_line_error(many, 1, "shards");
  EXPECT_LT(many.peak_bytes, verified("a.tar").peak_bytes + (uint64_t{64} << 20));
}

}  // namespace
}  // namespace moesaic::testing
