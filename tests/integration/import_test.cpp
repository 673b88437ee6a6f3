// SPDX-License-Identifier: Apache-2.0
// Checkpoints of google-research/vmoe, as a user imports, uses and exports them.
#include <fmt/format.h>
#include <torch/torch.h>

#include "import/vmoe/files/fixture.h"
#include "import/vmoe/fixture.h"
#include "integration/program.h"
#include "integration/readme.h"
#include "moesaic/base/process.h"
#include "moesaic/checkpoint/store.h"
#include "moesaic/models/vmoe/vmoe.h"
#include "support/matchers.h"

namespace moesaic::testing {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

/// Images of Fashion-MNIST's shape.
VMoEConfig small_config() {
  VMoEConfig config = import_config();
  config.image_size = 28;
  config.channels = 1;
  config.patch_size = 7;
  config.num_classes = 10;
  return config;
}

class Import : public ProgramTest {
 protected:
  void write_checkpoint(const VMoEConfig& config = small_config(),
                        uint64_t max_chunk_bytes = 4000) const {
    write_arrays(path("ckpt"), random_arrays(config),
                 {.shards = 2, .max_chunk_bytes = max_chunk_bytes});
    write("config.json", to_json(config).dump(2));
  }
  ProgramResult run_import(const Strings& more = {}, const std::string& prefix = "ckpt") const {
    return run_program(joined({"import", "vmoe", text_path(prefix), "--model-config",
                               text_path("config.json"), "--out", text_path("out")},
                              more));
  }
  /// Runs an import in a shell after other commands.
  ProgramResult import_after(const std::string& commands) const {
    return run_command(
        {"sh", "-c",
         fmt::format("{}; exec {} import vmoe {} --model-config {} --out {}", commands,
                     shell_quoted(MOESAIC_PROGRAM), shell_quoted(text_path("ckpt")),
                     shell_quoted(text_path("config.json")), shell_quoted(text_path("out")))});
  }
  void expect_refused(int code, const std::string& text, const ProgramResult& result) const {
    expect_one_line_error(result, code, text);
    EXPECT_FALSE(fs::exists(path("out")));
    for (const auto& item : fs::directory_iterator(path(""))) {
      EXPECT_FALSE(item.path().string().ends_with(".part")) << item.path();
    }
  }
  std::string shard(int number) const { return fmt::format("ckpt.data-{:05}-of-00002", number); }
};

TEST_F(Import, WhatIsImportedCanBeUsedLikeAnyCheckpoint) {
  write_checkpoint();
  const auto imported = must_succeed(run_import({"--json"}));
  EXPECT_EQ(imported.json()["shards"], 2);
  EXPECT_EQ(imported.json()["model"]["encoder"]["moe"]["num_experts"], 8);
  const std::string out = text_path("out");
  const auto inspected = must_succeed({"inspect", out, "--json"});
  EXPECT_EQ(inspected.json()["parameters"], imported.json()["parameters"]);

  write_tensors(path("in.safetensors"), {{"images", torch::rand({4, 1, 28, 28})}});
  for (const Strings& command : std::vector<Strings>{
           {"predict", out, "--input", text_path("in.safetensors"), "--output",
            text_path("logits.safetensors"), "--routing"},
           {"prune", "--finetuned", out, "--criterion", "magnitude", "--keep", "0.5", "--out",
            text_path("pruned")},
           {"export", out, "--format", "safetensors", "--out", text_path("native")},
           {"export", out, "--format", "vmoe", "--out", text_path("back"), "--shards", "3"},
           {"export", text_path("pruned"), "--format", "vmoe", "--out", text_path("zeros")}}) {
    must_succeed(command);
  }
  expect_equal(read_arrays(path("back")), read_arrays(path("ckpt")));
  EXPECT_TRUE(fs::exists(path("back.data-00002-of-00003")));
  const auto beside =
      run_program({"export", out, "--format", "safetensors", "--out", text_path("back")});
  EXPECT_THAT(beside.err, HasSubstr("wrote " + text_path("back") + ", "));  // Not back.index.
  must_succeed({"import", "vmoe", text_path("back"), "--model-config", out + "/config.json",
                "--out", text_path("again")});
  EXPECT_EQ(test::get(path("out") / "model.safetensors"),
            test::get(path("again") / "model.safetensors"));
}

TEST_F(Import, TrainingStartsFromIt) {
  if (!have_fashion_mnist()) GTEST_SKIP() << "needs Fashion-MNIST";
  write_checkpoint();
  must_succeed(run_import());
  must_succeed({"eval", text_path("out"), "--data", "fashion-mnist", "--json"});
  write("recipe.json",
        fmt::format(R"({{"name": "more", "init": "{}", "num_loader_threads": 0, "phases": [
      {{"name": "more", "data": "fashion-mnist", "batch_size": 4, "steps": 2, "evaluate": false,
        "optimizer": {{"name": "sgd", "lr": 0.01}}}}]}})",
                    text_path("out")));
  must_succeed({"train", text_path("recipe.json"), "--out", text_path("run")});
}

TEST_F(Import, FineTuningBegins) {
  write_checkpoint();
  const auto result = must_succeed(run_import({"--classes", "3", "--image-size", "56", "--json"}));
  EXPECT_EQ(result.json()["fresh"], (nlohmann::json{"head/kernel", "head/bias"}));
  const auto model = load_model(path("out"));
  EXPECT_EQ(model->num_classes(), 3);
  EXPECT_EQ(model->input_shape()[2], 56);
}

TEST_F(Import, InspectListsTheArrays) {
  write_checkpoint();
  const auto json = run_program({"inspect", text_path("ckpt"), "--json"}).json();
  EXPECT_EQ(json["kind"], "vmoe checkpoint");
  EXPECT_EQ(json["shards"], 2);
  EXPECT_EQ(json["tensors"].size(), random_arrays(small_config()).size());
  const auto text = run_program({"inspect", text_path("ckpt.index")});
  EXPECT_THAT(text.out, HasSubstr("Encoder/encoderblock_1/Moe/Router/dense/kernel"));
}

TEST_F(Import, ThePrefixMayBeOneOfItsFiles) {
  write_checkpoint();
  for (const std::string& name : {std::string("ckpt.index"), shard(1)}) {
    fs::remove_all(path("out"));
    must_succeed(run_import({}, name));
  }
  fs::remove_all(path("out"));
  expect_refused(2, "did you mean '" + text_path("ckpt") + "'?", run_import({}, "ckpd"));
  expect_refused(2, "no such folder", run_import({}, "none/ckpt"));
  for (const char* name : {"ckpt", "ckpt.index"}) {
    expect_refused(2, "a checkpoint of google-research/vmoe; first: moesaic import vmoe",
                   run_program({"eval", text_path(name)}));
  }
}

/// The example of docs/importing.md: a released architecture in its full size, with values of our
/// own.
TEST_F(Import, TheExampleOfItsPageTakesMemoryForTwoTensors) {
  write_checkpoint();
  const auto base = must_succeed(run_import());
  VMoEConfig config;
  config.image_size = 224;
  config.channels = 3;
  config.patch_size = 32;
  config.hidden_size = config.representation_size = 512;
  config.num_classes = 1000;
  config.encoder.num_layers = config.encoder.num_heads = 8;
  config.encoder.mlp_dim = 2048;
  config.encoder.moe.layers = {5, 7};
  write_arrays(path("pretrained"), random_arrays(config), {.shards = 4});
  const std::string page = test::get(source_path("docs/importing.md"));
  const size_t begin = page.find("```json\n{\n  \"name\": \"VisionTransformerMoe\"");
  ASSERT_NE(begin, std::string::npos);
  write("model.json", page.substr(begin + 8, page.find("```", begin + 8) - begin - 8));

  const auto imported =
      must_succeed(run_here("import vmoe pretrained --model-config model.json --out "
                            "checkpoints/start --classes 10 --image-size 128"));
  expect_shown("docs/importing.md", imported.out);
  const auto model = load_model(path("checkpoints/start"));
  EXPECT_EQ(model->num_classes(), 10);
  EXPECT_EQ(model->config()["encoder"]["moe"]["group_size"], 8 * 17);
#ifndef __SANITIZE_ADDRESS__
  const double bytes = 4.0 * static_cast<double>(model->num_parameters());
  EXPECT_LT(static_cast<double>(imported.peak_bytes) - static_cast<double>(base.peak_bytes),
            1.2 * bytes);
#endif
}

TEST_F(Import, MemoryIsForTwoTensors) {
  SKIP_WITH_SANITIZER("sanitizers keep memory of their own");
  write_checkpoint();
  const auto base = must_succeed(run_import());
  fs::remove_all(path("out"));
  VMoEConfig config = small_config();
  config.hidden_size = 480;  // So large that the pages of libraries are of no matter.
  config.encoder.mlp_dim = 1024;
  config.encoder.moe.layers = {0, 1, 2, 3};
  config.encoder.moe.num_experts = 16;  // a tensor of these is an eighth of the network
  write_checkpoint(config, 1 << 26);
  const auto large = must_succeed(run_import({"--json"}));
  const double bytes = 4.0 * large.json()["parameters"].get<double>();
  ASSERT_GT(bytes, 100e6);
  EXPECT_LT(static_cast<double>(large.peak_bytes) - static_cast<double>(base.peak_bytes),
            0.6 * bytes);
}

TEST_F(Import, DamagedFiles) {
  write_checkpoint();
  const std::string first = test::get(path(shard(0))), second = test::get(path(shard(1)));
  fs::remove(path(shard(1)));
  expect_refused(1, shard(1) + ": ", run_import());
  test::put(path(shard(1)), second.substr(0, second.size() - 100));
  expect_refused(1, shard(1) + ":", run_import());
  test::put(path(shard(1)), first);
  test::put(path(shard(0)), second);
  expect_refused(1, shard(0) + ":", run_import());
  test::put(path(shard(0)), first);
  test::put(path(shard(1)), second);
  // The first array number, its number of chunks, and so on; of the values nothing can be known.
  for (const uint64_t place : {0, 1, 20, 33, 34, 36}) {
    overwrite(path(shard(0)), place, std::string(1, static_cast<char>(first[place] ^ 0x40)));
    expect_refused(1, "ckpt.", run_import());
    test::put(path(shard(0)), first);
  }
  const std::string index = test::get(path("ckpt.index"));
  test::put(path("ckpt.index"), index.substr(0, index.size() / 2));
  expect_refused(1, "ckpt.index:", run_import());
  test::put(path("ckpt.index"), "");
  expect_refused(1, "ckpt.index:", run_import());
}

TEST_F(Import, HostileFiles) {
  SKIP_WITH_SANITIZER("a sanitizer needs memory of its own");
  write("config.json", to_json(small_config()).dump(2));
  const auto refused = [&](const vmoe_test::Parts& parts, const std::string& text) {
    parts.put(path("ckpt"));
    // Far less than what such files claim; the program itself takes some of it.
    expect_refused(1, text, import_after("ulimit -v 16000000"));
  };
  refused({.shape = {1 << 30, 1 << 30}, .chunks = {{{0, 1 << 30, 0, 1 << 30}, 0}}},
          "needs 2305843009213693952 bytes");
  refused({.chunks = {{{0, 2, 0, 2}, 1}, {{0, 2, 1, 3}, 0}}}, "chunks overlap");
  refused({.dtype = "complex64"}, "complex64");
  refused(
      {.shard_0 = {vmoe_test::array(
           "0", {vmoe_test::chunk({vmoe_test::piece("int16", 3, "BBCCEE", 7)}, {0, 2, 1, 3})})}},
      "unknown extension type 7");
  std::string leaf = vmoe_test::leaf("x", {1}, "uint8", {{{0, 1}, 0}});
  for (int i = 0; i < 10'000; ++i) leaf = vmoe_test::branch("x", {leaf});
  refused({.index = vmoe_test::index_file(2, {leaf})}, "ckpt.index:");
  refused({}, "not the parameters of a V-MoE");
}

TEST_F(Import, AConfigurationThatDoesNotFit) {
  write_checkpoint();
  auto config = to_json(small_config());
  config["encoder"]["num_layers"] = 12;
  write("config.json", config.dump(2));
  expect_refused(2, "encoder.num_layers is 12, but", run_import());
  write("config.json", "{\n  \"name\": \"VisionTransformerMoe\",\n  \"num_clases\": 3\n}");
  expect_refused(2, "config.json:3:3: unknown key 'num_clases'", run_import());
  write("config.json", "{\"name\": ");
  expect_refused(2, "config.json:1:", run_import());
  write("config.json", std::string(10'000, '['));
  expect_refused(2, "config.json:1:", run_import());
  fs::remove(path("config.json"));
  expect_refused(2, "config.json: no such file", run_import());
  expect_refused(2, "must have encoder.moe.group_size",
                 run_program({"import", "vmoe", text_path("ckpt"), "--out", text_path("out")}));
}

TEST_F(Import, APlaceThatCannotBeWritten) {
  write_checkpoint();
  write("file", "x");
  const auto into = [&](const std::string& out) {
    return run_program({"import", "vmoe", text_path("ckpt"), "--model-config",
                        text_path("config.json"), "--out", out});
  };
  expect_refused(2, "already exists", into(text_path("file")));
  expect_refused(2, "already exists", into(text_path("")));
  expect_refused(2, "file", into(text_path("file/out")));
  expect_refused(1, "/proc/none", into("/proc/none/out"));
  expect_refused(1, "out", import_after("trap '' XFSZ; ulimit -f 8"));
}

TEST_F(Import, WrongArguments) {
  write_checkpoint();
  expect_refused(2, "did you mean 'vmoe'?",
                 run_program({"import", "vmeo", text_path("ckpt"), "--out", text_path("out")}));
  expect_refused(2, "did you mean 'vmoe_b16_imagenet21k_randaug_strong'?",
                 run_program({"import", "vmoe", "vmoe_b16_imagenet21k_randaug_stronk", "--out",
                              text_path("out")}));
  EXPECT_THAT(run_program({"list", "checkpoints"}).out,
              HasSubstr("1.20 GB, Apache-2.0; V-MoE B/16"));
  expect_refused(2, "between 1 and", run_import({"--classes", "0"}));
  expect_refused(2,
                 "patch_size 7 does not divide image_size 30; choose patch_size 6 or image_size 28",
                 run_import({"--image-size", "30"}));
  write("rules.json", "[[\"head\", \"\"], [\"^(.*)$\", \"params/\\\\1\", \"vitzoom\"]]");
  expect_refused(2, "rules.json:1:", run_import({"--rules", text_path("rules.json")}));
  write("rules.json", "[[\"^nothing$\", \"\"]]");
  expect_refused(1, "in " + text_path("rules.json"),
                 run_import({"--rules", text_path("rules.json")}));
  must_succeed(run_command({"mkfifo", text_path("pipe")}));
  expect_refused(2, "pipe: not a regular file", run_import({"--rules", text_path("pipe")}));
  expect_refused(2, "did you mean '--model-config'?", run_import({"--modelconfig", "x"}));
}

TEST_F(Import, AnExportThatCannotBe) {
  write_checkpoint();
  must_succeed(run_import());
  const auto into = [&](const std::string& out, const Strings& more = {}) {
    return run_program(
        joined({"export", text_path("out"), "--format", "vmoe", "--out", out}, more));
  };
  expect_one_line_error(into(text_path("ckpt")), 2, "already exists");
  fs::remove(path("ckpt.index"));
  expect_one_line_error(into(text_path("ckpt")), 2, "already exists");
  expect_one_line_error(into(text_path("none/ckpt")), 2, "no such folder");
  expect_one_line_error(into(text_path("new"), {"--shards", "0"}), 2, "between 1 and");
  expect_usage_error({"export", text_path("out"), "--format", "safetensors", "--out",
                      text_path("x"), "--shards", "2"},
                     "--shards is for the format vmoe");
}

}  // namespace
}  // namespace moesaic::testing
