// SPDX-License-Identifier: Apache-2.0
// Dense vision transformers of timm and Hugging Face, as a user imports them.
#include <fmt/format.h>
#include <torch/torch.h>

#include <cstdlib>
#include <filesystem>
#include <sstream>
#include <tuple>

#include "base/support.h"
#include "data/http_server.h"
#include "integration/program.h"
#include "integration/readme.h"
#include "moesaic/base/text.h"
#include "moesaic/checkpoint/store.h"
#include "support/matchers.h"

namespace moesaic::testing {
namespace {

namespace fs = std::filesystem;

/// MOESAIC_VENV's Python or python3, whichever has these modules; empty if none.
std::string python_with(const std::string& modules) {
  const char* venv = std::getenv("MOESAIC_VENV");
  for (const std::string& python :
       {(fs::path(venv == nullptr ? "" : venv) / "bin/python").string(), std::string("python3")}) {
    if (run_command({python, "-W", "ignore", "-c", "import " + modules}).exit_code == 0) {
      return python;
    }
  }
  return "";
}

class VitImport : public ProgramTest {
 protected:
  /// A network of one block of width 4 under timm's names, without a class token and a head.
  std::string tiny() const {
    TensorMap tensors = {{"pos_embed", torch::zeros({1, 4, 4})},
                         {"patch_embed.proj.weight", torch::ones({4, 3, 2, 2})},
                         {"patch_embed.proj.bias", torch::ones({4})}};
    for (const std::string name : {"blocks.0.norm1", "blocks.0.norm2", "norm"}) {
      tensors[name + ".weight"] = tensors[name + ".bias"] = torch::ones({4});
    }
    for (const auto& [name, in, out] : {std::tuple("attn.qkv", 4, 12),
                                        {"attn.proj", 4, 4},
                                        {"mlp.fc1", 4, 8},
                                        {"mlp.fc2", 8, 4}}) {
      tensors[fmt::format("blocks.0.{}.weight", name)] = torch::ones({out, in});
      tensors[fmt::format("blocks.0.{}.bias", name)] = torch::ones({out});
    }
    write_tensors(path("tiny.safetensors"), tensors);
    return text_path("tiny.safetensors");
  }
  ProgramResult import_tiny(const Strings& more) const {
    return run_program(
        joined({"import", "vit", tiny(), "--out", text_path("out"), "--num-heads", "2"}, more));
  }
};

TEST_F(VitImport, ANetworkOfTheHubIsImportedByName) {
  const std::string weights = test::get(tiny());
  test::HttpServer hub(
      {{"timm/tiny/resolve/main/model.safetensors", {weights.begin(), weights.end()}}});
  const ProgramOptions options{.environment = {"HF_ENDPOINT=" + hub.url(), "no_proxy=127.0.0.1",
                                               "MOESAIC_DATA=" + text_path("data")}};
  const auto import_named = [&](const std::string& name) {
    return run_program(
        {"import", "vit", name, "--num-heads", "2", "--out", text_path("out"), "--json"}, options);
  };
  const auto imported = must_succeed(import_named("hf://timm/tiny"));
  EXPECT_EQ(imported.json()["from"], text_path("data/checkpoints/timm/tiny/model.safetensors"));
  // The output is looked at before anything is fetched.
  expect_one_line_error(import_named("hf://timm/other"), 2, "already exists");
  fs::remove_all(path("out"));
  expect_one_line_error(import_named("hf://hf_secret@timm/tiny"), 2, "a token");
  EXPECT_EQ(hub.requests().size(), 3U);
}

TEST_F(VitImport, AMixtureCanBeUsedLikeAnyCheckpoint) {
  const auto imported =
      must_succeed(import_tiny({"--experts", "4", "--layers", "0", "--k", "2", "--classes", "3"}));
  EXPECT_THAT(imported.out, HasSubstr("  experts     4 in blocks [0], 2 for each token"));
  write_tensors(path("in.safetensors"), {{"images", torch::rand({5, 3, 4, 4})}});
  for (const Strings& command : std::vector<Strings>{
           {"predict", text_path("out"), "--input", text_path("in.safetensors"), "--output",
            text_path("logits.safetensors")},
           {"prune", "--finetuned", text_path("out"), "--criterion", "magnitude", "--keep", "0.5",
            "--out", text_path("pruned")},
           {"export", text_path("pruned"), "--format", "torchscript", "--out", text_path("m.pt")},
           {"inspect", text_path("out"), "--json"}}) {
    must_succeed(command);
  }
  const auto foreign = run_program(
      {"export", text_path("out"), "--format", "vmoe", "--out", text_path("reference")});
  expect_one_line_error(foreign, 2, "which a V-MoE checkpoint cannot store; choose safetensors");
}

TEST_F(VitImport, OptionsOfTheOtherFormatAreRefused) {
  for (const auto& [options, text] : std::vector<std::pair<Strings, std::string>>{
           {{"--rules", "rules.json"}, "--rules is for the format vmoe"},
           {{"--layers", "0"}, "--layers needs --experts N"},
           {{"--experts", "2", "--layers", "1"}, "--layers names block 1"},
           {{"--experts", "2", "--layers", "0", "--k", "3"}, "--k 3 is more than the 2 experts"}}) {
    expect_one_line_error(import_tiny(options), 2, text);
    EXPECT_FALSE(fs::exists(path("out")));
  }
  expect_usage_error({"import", "vmoe", "ckpt", "--out", text_path("out"), "--num-heads", "2"},
                     "--num-heads is for the format vit");
  expect_usage_error({"import", "vitt", tiny(), "--out", text_path("out")}, "did you mean 'vit'?");
}

TEST_F(VitImport, SaysWhatIsReadWhereAFileOrFolderIsOfAnotherKind) {
  fs::create_directories(path("empty"));
  write("photo.png", "no tensors, only words");
  for (const auto& [from, text] : std::vector<std::pair<const char*, const char*>>{
           {"empty", "empty: no model.safetensors; give the folder that has it, or a "},
           {"photo.png", "photo.png: not a safetensors file, nor a folder with "}}) {
    expect_usage_error({"import", "vit", text_path(from), "--out", text_path("out")}, text);
  }
}

TEST_F(VitImport, OutputsEqualThoseOfTimmAndTransformers) {
  const std::string python = python_with("torch, safetensors");
  if (python.empty()) GTEST_SKIP() << "needs a Python with torch and safetensors";
  const std::string script = source_path("tests/python/vit_peers.py");
  const auto made =
      must_succeed(run_command({python, "-B", "-W", "ignore", script, "make", path("").string()}));
  std::istringstream lines(made.out);
  std::string line, missing;
  int64_t networks = 0;
  while (std::getline(lines, line)) {
    const Strings words = split(line, ' ');
    if (words.at(0) == "missing") missing += " " + words.at(1);
    if (words.at(0) != "network") continue;
    const fs::path folder = path(words.at(1));
    must_succeed(joined({"import", "vit", folder.string(), "--out", (folder / "out").string()},
                        {words.begin() + 2, words.end()}));
    must_succeed({"predict", (folder / "out").string(), "--input",
                  (folder / "images.safetensors").string(), "--output",
                  (folder / "found.safetensors").string()});
    ++networks;
  }
  if (networks > 0) {
    must_succeed(run_command({python, "-B", script, "check", path("").string()}));
  }
  if (!missing.empty()) GTEST_SKIP() << "needs Python's" << missing;
}

}  // namespace
}  // namespace moesaic::testing
