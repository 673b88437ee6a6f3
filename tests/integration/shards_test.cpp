// SPDX-License-Identifier: Apache-2.0
// Data packed into shards and trained on, from the command line.
#include <torch/torch.h>

#include <algorithm>

#include "integration/processes.h"
#include "moesaic/checkpoint/tensors.h"
#include "support/matchers.h"

namespace moesaic::testing {
namespace {

class PackedData : public ProgramTest {
 protected:
  PackedData() : options_{.environment = {"MOESAIC_DATA=" + text_path("data")}} {
    std::filesystem::create_directories(path("data/mini"));
    write("data/mini/train.bin", records(60));
    write("data/mini/test.bin", records(12));
    write("mini.json", R"({"name": "mini", "format": "cifar", "classes": ["dark", "bright"],
        "mean": [0.5, 0.5, 0.5], "std": [0.2, 0.2, 0.2], "files": {
          "train_1": {"name": "train.bin", "size": 184380},
          "test_1": {"name": "test.bin", "size": 36876}}})");
    write("run.json", R"({"name": "packed", "seed": 3, "checkpoint_every": 2, "log_every": 1,
        "model": {"name": "vmoe", "image_size": 32, "channels": 3, "patch_size": 8,
          "hidden_size": 16, "num_classes": 2, "encoder": {"num_layers": 2, "num_heads": 2,
            "mlp_dim": 32, "moe": {"layers": [1], "num_experts": 4,
              "router": {"num_selected_experts": 2}}}},
        "phases": [{"name": "train", "data": ")" +
                          text_path("packed/packed.json") + R"(", "batch_size": 8, "steps": 24,
          "optimizer": {"name": "adamw", "lr": 1e-3}, "augment": {"flip": true}}]})");
  }

  /// Dark or bright images by turns, each with its own noise.
  static std::string records(int count) {
    std::string bytes;
    uint32_t noise = 1;
    for (int i = 0; i < count; ++i) {
      bytes += static_cast<char>(i % 2);
      for (int pixel = 0; pixel < 3072; ++pixel) {
        noise = noise * 1664525 + 1013904223;
        bytes += static_cast<char>(60 + 100 * (i % 2) + noise % 40);
      }
    }
    return bytes;
  }

  ProgramResult pack(const std::string& out, Strings more = {}) const {
    Strings arguments = {"data",  "pack",         text_path("mini.json"),
                         "--out", text_path(out), "--shards"};
    if (more.empty()) more = {"6"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run_program(arguments, options_);
  }
  ProgramResult train(const std::string& out, Strings more = {}) const {
    more.insert(more.begin(), {"train", text_path("run.json"), "--out", text_path(out)});
    return run_program(more, options_);
  }
  void expect_same_model(const std::string& a, const std::string& b) const {
    const auto wanted = read_tensors(path(a) / "checkpoints/train/model.safetensors");
    const auto found = read_tensors(path(b) / "checkpoints/train/model.safetensors");
    ASSERT_EQ(found.size(), wanted.size());
    for (const auto& [name, tensor] : wanted) {
      EXPECT_TRUE(torch::equal(found.at(name), tensor)) << name;
    }
  }

  ProgramOptions options_;
};

TEST_F(PackedData, WithoutHashesIsFetchedAndNotCalledVerified) {
  must_succeed(pack("packed"));
  write("own.json", R"({"name": "own", "format": "shards", "classes": ["dark", "bright"],
      "shards": {"train": [{"name": "train-{00000..00005}.tar"}]}, "urls": ["file://)" +
                        text_path("packed") + "\"]}");
  for (const char* state : {": 6 files fetched in ", ": here, "}) {
    const auto fetched = must_succeed({"data", "fetch", text_path("own.json")}, options_);
    EXPECT_THAT(fetched.out,
                AllOf(HasSubstr(state), HasSubstr("not verified: no SHA-256 of 6 files is")));
  }
}

TEST_F(PackedData, IsTrainedOnByTwoProcessesAsByOne) {
  must_succeed(pack("packed"));
  must_succeed(train("one"));
  all_must_succeed(run_in_processes({"train", text_path("run.json"), "--out", text_path("two")}, 2,
                                    {}, options_.environment));
  const auto wanted = read_tensors(path("one") / "checkpoints/train/model.safetensors");
  const auto found = read_tensors(path("two") / "checkpoints/train/model.safetensors");
  ASSERT_EQ(found.size(), wanted.size());
  for (const auto& [name, tensor] : found) {
    EXPECT_TRUE(torch::allclose(tensor, wanted.at(name), 1e-3, 1e-4)) << name;
  }
}

TEST_F(PackedData, IsTrainedOnResumedAndEvaluated) {
  const auto packed = must_succeed(pack("packed"));
  EXPECT_THAT(packed.out, AllOf(HasSubstr("train      60 images in 6 shards, "),
                                HasSubstr("test       12 images in 2 shards, "),
                                HasSubstr("phases.0.data=" + text_path("packed/packed.json"))));
  const auto verified = must_succeed({"data", "verify", text_path("packed/packed.json")}, options_);
  EXPECT_THAT(verified.out, AllOf(HasSubstr("train-00005.tar"), HasSubstr("train: 60 of 60")));

  must_succeed(train("run", {"num_loader_threads=0"}));
  must_succeed(train("threaded", {"num_loader_threads=8"}));
  expect_same_model("run", "threaded");

  ProgramOptions stopping = options_;
  stopping.interrupt_after_ms = 0;
  stopping.interrupt_when = path("stopped") / "metrics.jsonl";
  const Strings again = {"train", text_path("run.json"), "--out", text_path("stopped")};
  const auto stopped = run_program(again, stopping);
  ASSERT_TRUE(stopped.exit_code == 130 || stopped.exit_code == 0) << stopped.err;
  must_succeed(train("stopped", {"--resume"}));
  expect_same_model("run", "stopped");

  const auto own = must_succeed({"eval", text_path("run"), "--json"}, options_);
  EXPECT_EQ(own.json()["images"], 12);
  const auto unpacked = must_succeed(
      {"eval", text_path("run"), "--data", text_path("mini.json"), "--json"}, options_);
  EXPECT_EQ(unpacked.json()["accuracy"], own.json()["accuracy"]);  // Of the same pixels.
  EXPECT_NEAR(unpacked.json()["loss"].get<double>(), own.json()["loss"].get<double>(), 1e-5);
}

TEST_F(PackedData, WrongUseIsOneLineAndLeavesNothing) {
  expect_one_line_error(pack("packed", {"61"}), 2, "--shards is 61");
  expect_one_line_error(pack("packed", {"0"}), 2, "--shards");
  expect_one_line_error(pack("packed", {"2", "--split", "tset"}), 2, "did you mean 'test'?");
  expect_one_line_error(pack("packed", {"2", "--size", "x"}), 2, "--size");
  expect_one_line_error(pack("data", {"2"}), 2, "already exists; name a new or an empty folder");
  EXPECT_FALSE(std::filesystem::exists(path("packed")));
  expect_usage_error(
      {"data", "pack", "latent-small", "--shards", "2", "--out", text_path("packed")},
      "not images");
  must_succeed(pack("packed"));
  std::filesystem::remove(path("packed/train-00003.tar"));
  expect_one_line_error(train("run"), 1, "file 'train-00003.tar' not found");
}

TEST_F(PackedData, ATruncatedShardIsNamed) {
  must_succeed(pack("packed"));
  const std::filesystem::path shard = path("packed/train-00002.tar");
  std::filesystem::resize_file(shard, std::filesystem::file_size(shard) / 2);
  expect_usage_error({"eval", text_path("run"), "--data", text_path("packed/packed.json")}, "run",
                     options_);  // There is no run yet.
  const auto trained = train("run");
  EXPECT_EQ(trained.exit_code, 1);
  EXPECT_THAT(trained.err, HasSubstr("of 60 train images are lost in corrupt shards"));
  EXPECT_THAT(trained.err, HasSubstr(shard.string()));
}

}  // namespace
}  // namespace moesaic::testing
