// SPDX-License-Identifier: Apache-2.0
// Whatever is wrong gets one line that says where and what, the right exit code, and leaves nothing
// behind.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <fstream>

#include "integration/program.h"
#include "moesaic/base/file.h"
#include "moesaic/base/hash.h"
#include "moesaic/base/process.h"
#include "moesaic/checkpoint/tensors.h"

namespace moesaic::testing {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

class BadInput : public ProgramTest {
 protected:
  std::string recipe_with(const std::string& from, const std::string& to) const {
    std::string text = read_text(smoke_recipe());
    const size_t place = text.find(from);
    EXPECT_NE(place, std::string::npos) << from;
    write("recipe.json", text.replace(place, from.size(), to));
    return text_path("recipe.json");
  }
  ProgramResult train(const std::string& recipe, const std::vector<std::string>& more = {}) const {
    std::vector<std::string> command = {"train", recipe, "--out", text_path("run")};
    command.insert(command.end(), more.begin(), more.end());
    return run_program(command);
  }
  void expect_no_run() const { EXPECT_FALSE(fs::exists(path("run"))); }
  std::string copy_checkpoint(const std::string& phase) const {
    fs::copy(smoke_run() / "checkpoints" / phase, path("copy"), fs::copy_options::recursive);
    return text_path("copy");
  }
  /// Changes the checkpoint's config and its manifest with it, as someone with an editor and
  /// patience would.
  void edit_config(const fs::path& checkpoint, void (*change)(ordered_json&)) const {
    auto config = ordered_json::parse(read_text(checkpoint / "config.json"));
    change(config);
    write_atomic(checkpoint / "config.json", config.dump(2));
    auto manifest = ordered_json::parse(read_text(checkpoint / "MANIFEST.json"));
    manifest["files"]["config.json"] = {{"size", fs::file_size(checkpoint / "config.json")},
                                        {"sha256", sha256_file_hex(checkpoint / "config.json")}};
    write_atomic(checkpoint / "MANIFEST.json", manifest.dump(2));
  }
};

TEST_F(BadInput, AWrongKeyTypeOrValueInARecipe) {
  NEEDS_FASHION_MNIST();
  expect_one_line_error(train(recipe_with("\"lr\"", "\"learning_rate\"")), 2, "did you mean 'lr'");
  expect_no_run();
  expect_one_line_error(train(recipe_with("\"batch_size\": ", "\"batch_size\": -")), 2,
                        "recipe.json:");
  expect_one_line_error(train(recipe_with("\"batch_size\": ", "\"batch_size\": true, \"x\": ")), 2,
                        "recipe.json:");
  expect_one_line_error(train(recipe_with("{", "{,")), 2, "recipe.json:2:");
  expect_one_line_error(train(smoke_recipe(), {"phases.0.epohs=3"}), 2, "epochs");
  expect_one_line_error(train(smoke_recipe(), {"model.name=vmoo"}), 2, "vmoe");
  expect_no_run();
}

TEST_F(BadInput, APathThatDoesNotExist) {
  expect_one_line_error(train(text_path("nowhere.json")), 2, "nowhere.json");
  expect_no_run();
}

TEST_F(BadInput, ACurrentFolderThatWasRemoved) {
  fs::create_directory(path("gone"));
  const auto result = run_command({"sh", "-c", R"(cd "$1" && rmdir "$1" && exec "$0" list)",
                                   MOESAIC_PROGRAM, text_path("gone")});
  expect_one_line_error(result, 2, "the current folder was removed");
}

TEST_F(BadInput, AnUnknownVerbOrOption) {
  expect_one_line_error(run_program({"trane"}), 2,
                        "unknown subcommand 'trane'; choose one of train");
  expect_one_line_error(run_program({"traim", "x"}), 2, "did you mean 'train'?");
  expect_one_line_error(run_program({"data", "verfy", "x"}), 2, "did you mean 'verify'?");
  expect_one_line_error(run_program({"bench", "operatros"}), 2, "did you mean 'operators'?");
  expect_one_line_error(run_program({"bench", "operators", "--write", "/no/such/folder/x.json"}), 2,
                        "no such folder /no/such/folder; nothing is at '/no'");
  write("thesis.json", "{}");
  expect_one_line_error(run_program({"bench", "operators", "--write", text_path("thesis.json")}), 2,
                        "the file there was not written by bench; name a new one");
  expect_one_line_error(run_program({"bench", "operators", "--rows", "foo*"}), 2,
                        "--rows: 'operators' has no row like 'foo*'; choose one of cpu/*");
  expect_one_line_error(run_program({"bench", "data", "--rows", "cpu/loadr"}), 2,
                        "did you mean 'cpu/loader'?");
  expect_one_line_error(run_program({"bench", "./run", "--rows", "*"}), 2,
                        "--rows is for a benchmark");
  expect_one_line_error(run_program({"--jsn"}), 2, "unknown option '--jsn'");
  expect_one_line_error(run_program({"prune", "--kep", "4"}), 2, "did you mean '--keep'?");
  expect_one_line_error(run_program({"train", "x.json", "--dryrun"}), 2,
                        "unknown option '--dryrun'; settings of a recipe have no dashes: "
                        "dryrun=VALUE; did you mean '--dry-run'?");
  expect_one_line_error(run_program({}), 2, "error: choose one of train, eval");
  expect_one_line_error(run_program({"data"}), 2, "error: data: choose one of list, fetch");
  expect_one_line_error(run_program({"train"}), 2,
                        "error: train: the recipe is missing; moesaic list recipes lists some");
  expect_one_line_error(run_program({"bench", "x", "y"}), 2,
                        "error: bench: unexpected argument 'y'");
  expect_one_line_error(run_program({"prune", "--out"}), 2, "error: prune: --out needs a value");
  expect_one_line_error(run_program({"reproduce", "table1"}), 2, "did you mean 'clusters/table1'?");
  expect_one_line_error(run_program({"list", "modles"}), 2, "did you mean 'models'");
  expect_one_line_error(run_program({"data", "verify", "fashion-mnits"}), 2, "fashion-mnist");
  expect_one_line_error(run_program({"reproduce", "quickstrat"}), 2, "quickstart");
}

TEST_F(BadInput, ATruncatedOrAlteredDataFile) {
  NEEDS_FASHION_MNIST();
  const fs::path source = "/usr/share/datasets/fashion-mnist";
  if (!fs::exists(source)) GTEST_SKIP() << "needs the package dataset-fashion-mnist";
  for (const bool truncate : {true, false}) {
    fs::remove_all(path("data"));
    fs::create_directories(path("data"));
    fs::copy(source, path("data/fashion-mnist"), fs::copy_options::recursive);
    const fs::path file = path("data/fashion-mnist/train-images-idx3-ubyte.gz");
    if (truncate) {
      fs::resize_file(file, fs::file_size(file) / 2);
    } else {
      std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
      stream.seekp(static_cast<std::streamoff>(fs::file_size(file) / 2));
      stream.write("altered!", 8);
    }
    const ProgramOptions options{.environment = {"MOESAIC_DATA=" + text_path("data")}};
    const auto result = run_program({"train", smoke_recipe(), "--out", text_path("run")}, options);
    expect_one_line_error(result, 1, "train-images-idx3-ubyte");
    expect_no_run();
    EXPECT_EQ(run_program({"data", "verify", "fashion-mnist"}, options).exit_code, 1);
  }
}

TEST_F(BadInput, AnAlteredPixelInAnUnpackedDataFile) {
  NEEDS_FASHION_MNIST();
  const fs::path source = "/usr/share/datasets/fashion-mnist";
  if (!fs::exists(source)) GTEST_SKIP() << "needs the package dataset-fashion-mnist";
  fs::create_directories(path("data"));
  fs::copy(source, path("data/fashion-mnist"), fs::copy_options::recursive);
  const fs::path file = path("data/fashion-mnist/train-images-idx3-ubyte");
  ASSERT_EQ(run_command({"gzip", "-d", file.string() + ".gz"}).exit_code, 0);
  {
    std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
    stream.seekp(12345);
    stream.put('\x77');
  }
  const ProgramOptions options{.environment = {"MOESAIC_DATA=" + text_path("data")}};
  expect_one_line_error(run_program({"train", smoke_recipe(), "--out", text_path("run")}, options),
                        1, "train-images-idx3-ubyte");
  expect_no_run();
}

TEST_F(BadInput, APruningThatCannotWorkIsFoundBeforeTraining) {
  NEEDS_FASHION_MNIST();
  for (const char* keep : {"99", "1", "0"}) {
    const std::string setting = std::string("phases.prune.on_entry.prune.keep=") + keep;
    expect_one_line_error(train(smoke_recipe(), {setting}), 2, keep);
    expect_no_run();
  }
}

TEST_F(BadInput, ATruncatedOrAlteredCheckpoint) {
  NEEDS_FASHION_MNIST();
  const fs::path checkpoint = copy_checkpoint("finetune");
  const fs::path file = checkpoint / "model.safetensors";
  {
    std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
    stream.seekp(static_cast<std::streamoff>(fs::file_size(file)) - 100);
    stream.put('\x5a');
  }
  for (const char* verb : {"eval", "inspect"}) {
    expect_one_line_error(run_program({verb, checkpoint.string()}), 1, "model.safetensors");
  }
  const std::string out = text_path("out.pt");
  expect_one_line_error(
      run_program({"export", checkpoint.string(), "--format", "torchscript", "--out", out}), 1,
      "model.safetensors");
  EXPECT_FALSE(fs::exists(out));
  fs::resize_file(file, fs::file_size(file) - 10);
  expect_one_line_error(run_program({"eval", checkpoint.string()}), 1, "model.safetensors");
}

TEST_F(BadInput, AnAlteredOptimizerIsOfNoMatterWhereItIsNotUsed) {
  NEEDS_FASHION_MNIST();
  const fs::path checkpoint = copy_checkpoint("finetune");
  std::string bytes = read_text(checkpoint / "optimizer.safetensors");
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  write_atomic(checkpoint / "optimizer.safetensors", std::string_view(bytes));
  const std::string from = checkpoint.string();
  const std::vector<std::vector<std::string>> verbs = {
      {"eval", from},
      {"inspect", from},
      {"inspect", from, from},
      {"export", from, "--format", "safetensors", "--out", text_path("out")},
      {"prune", "--pretrained", from, "--finetuned", from, "--keep", "0.5", "--out",
       text_path("pruned")}};
  for (const std::vector<std::string>& verb : verbs) {
    const auto result = run_program(verb);
    EXPECT_EQ(result.exit_code, 0) << verb.front() << ": " << result.err;
  }
}

TEST_F(BadInput, DataWithAnotherNumberOfClasses) {
  NEEDS_FASHION_MNIST();
  const std::string checkpoint = (smoke_run() / "checkpoints/finetune").string();
  const auto result = run_program({"eval", checkpoint, "--data", "fashion-mnist"});
  expect_one_line_error(result, 2, "the class 'T-shirt/top' is not a class of the network");
  EXPECT_NE(result.err.find("Sandal, Sneaker, Ankle boot"), std::string::npos);
  expect_one_line_error(train(smoke_recipe(), {"phases.0.data=fashion-mnist-footwear"}), 2, "3");
  expect_no_run();
}

TEST_F(BadInput, APrunedCheckpointLoadedAsUnpruned) {
  NEEDS_FASHION_MNIST();
  const fs::path checkpoint = copy_checkpoint("prune");
  edit_config(checkpoint, [](ordered_json& config) {
    config["model"]["encoder"]["moe"]["kept_experts"] = ordered_json::object();
  });
  expect_one_line_error(run_program({"eval", checkpoint.string()}), 1, "kept_experts");
}

TEST_F(BadInput, AnUnknownCriterionOrTooFewExperts) {
  NEEDS_FASHION_MNIST();
  const std::string pretrained = (smoke_run() / "checkpoints/pretrain").string();
  const std::string finetuned = (smoke_run() / "checkpoints/finetune").string();
  const auto prune = [&](const std::string& criterion, const std::string& keep) {
    return run_program({"prune", "--pretrained", pretrained, "--finetuned", finetuned,
                        "--criterion", criterion, "--keep", keep, "--out", text_path("pruned")});
  };
  expect_one_line_error(prune("router-norm-chnage", "0.5"), 2, "did you mean 'router-norm-change'");
  expect_one_line_error(prune("random", "1"), 2, "1");
  expect_one_line_error(prune("random", "99"), 2, "99");
  expect_one_line_error(prune("random", "half"), 2, "half");
  EXPECT_FALSE(fs::exists(path("pruned")));
}

TEST_F(BadInput, ARunFolderThatIsInUse) {
  NEEDS_FASHION_MNIST();
  const std::string run = smoke_run().string();
  expect_one_line_error(run_program({"train", smoke_recipe(), "--out", run}), 2, "--resume");
  expect_one_line_error(run_program({"train", smoke_recipe(), "seed=99", "--out", run, "--resume"}),
                        2, "seed");
}

TEST_F(BadInput, PredictRefusesWrongImages) {
  NEEDS_FASHION_MNIST();
  write("in.safetensors", "nonsense");
  const auto result =
      run_program({"predict", (smoke_run() / "checkpoints/finetune").string(), "--input",
                   text_path("in.safetensors"), "--output", text_path("out.safetensors")});
  expect_one_line_error(result, 1, "in.safetensors");
  EXPECT_FALSE(fs::exists(path("out.safetensors")));
}

TEST_F(BadInput, ADeviceThatThisBuildCannotUse) {
  const auto result =
      run_program({"train", smoke_recipe(), "--out", text_path("run"), "--device", "cuda"});
  expect_one_line_error(result, 2, "cpu");
  expect_no_run();
}

TEST_F(BadInput, APathThatIsNearlyRight) {
  write("smoke.json", "{}");
  write("file.txt", "x");
  expect_one_line_error(train(text_path("smok.json")), 2,
                        "did you mean '" + text_path("smoke.json") + "'?");
  expect_one_line_error(train(text_path("")), 2, "a folder, not a recipe");
  expect_one_line_error(run_program({"train", "seed=2"}), 2, "the recipe comes first");
  const std::string name(300, 'x');
  expect_one_line_error(run_program({"eval", name}), 1, "File name too long");
  expect_one_line_error(run_program({"inspect", name}), 1, "File name too long");
  expect_one_line_error(run_program({"train", smoke_recipe(), "--out", text_path(name)}), 1,
                        "File name too long");
  ASSERT_EQ(run_command({"mkfifo", text_path("pipe")}).exit_code, 0);
  expect_one_line_error(run_program({"inspect", text_path("pipe")}), 2, "not a regular file");
  expect_one_line_error(train(text_path("pipe")), 2, "pipe: not a regular file");
  expect_one_line_error(train("/dev/zero"), 2, "/dev/zero: not a regular file");
}

TEST_F(BadInput, AnEmptyName) {
  for (const std::vector<std::string>& command : std::vector<std::vector<std::string>>{
           {"export", "x", "--format", "torchscript", "--out", ""},
           {"prune", "--finetuned", "x", "--keep", "2", "--out", ""},
           {"predict", "x", "--input", "y", "--output", ""},
           {"train", smoke_recipe(), "--out", ""},
           {"reproduce", "quickstart", "--out", ""},
           {"eval", ""}}) {
    expect_one_line_error(run_program(command), 2, "must not be empty");
  }
}

TEST_F(BadInput, ANumberThatIsOutOfRange) {
  for (const char* size : {"0", "-3", "1e9", "4000000000", "many"}) {
    expect_one_line_error(run_program({"eval", "x", "--batch-size", size}), 2,
                          "must be a whole number between 1 and 1048576");
    expect_one_line_error(
        run_program({"predict", "x", "--input", "y", "--output", "z", "--batch-size", size}), 2,
        "between 1 and 1048576");
  }
  expect_one_line_error(
      run_program({"prune", "--finetuned", "x", "--keep", "2", "--out", "y", "--seed", "-1"}), 2,
      "between 0 and");
}

TEST_F(BadInput, AdviceToFetchOnlyWhatHasAnAddress) {
  const std::vector<std::string> nowhere = {"MOESAIC_DATA=" + text_path("none")};
  const auto result = run_program({"doctor"}, {.environment = nowhere});
  EXPECT_NE(result.out.find("imagenet is not here; place or link it at "), std::string::npos)
      << result.out;
  expect_one_line_error(
      run_program({"data", "fetch", "imagenet"}, {.environment = nowhere}), 1,
      "place or link the files at " + text_path("none/imagenet") + ": train/, val/");
}

TEST_F(BadInput, MissingDataNameTheirArgument) {
  expect_one_line_error(run_program({"eval", "x", "--data", "mnits"}), 2,
                        "--data: unknown dataset 'mnits' (a folder of images needs a slash in its "
                        "name); did you mean 'mnist'?");
  expect_one_line_error(run_program({"eval", "x", "--data", "./nonsense.json"}), 2,
                        "--data: dataset './nonsense.json': no such file; moesaic list datasets");
  const auto train = [&](const std::string& data) {
    return run_program(
        {"train", smoke_recipe(), "phases.0.data=" + data, "--out", text_path("out")},
        {.environment = {"MOESAIC_DATA=" + text_path("none")}});
  };
  expect_one_line_error(
      train("./nonsense.json"), 2,
      "argument 'phases.0.data=./nonsense.json': dataset './nonsense.json': no such");
  expect_one_line_error(train("imagenet"), 1,
                        "argument 'phases.0.data=imagenet': dataset 'imagenet'");
}

TEST_F(BadInput, FoldersOfImagesSayWhatTheyLack) {
  fs::create_directories(path("pets/train/dog"));
  write("pets/train/dog/notes.txt", "x");
  const auto pets = run_program({"data", "verify", text_path("pets")});
  EXPECT_EQ(pets.exit_code, 1);
  EXPECT_NE(pets.out.find("in its folders; 1 left out: 1 file not called .jpg, "),
            std::string::npos)
      << pets.out;
  const auto fetched = run_program({"data", "fetch", "clusters-figure1"});
  EXPECT_EQ(fetched.out, "clusters-figure1: generated when opened, nothing to fetch\n");
}

TEST_F(BadInput, ALevelOfMessagesThatIsNone) {
  for (const std::vector<std::string>& command :
       {std::vector<std::string>{"list", "models"}, {"data", "list"}, {"train", "--help"}}) {
    EXPECT_EQ(
        run_program(command, {.environment = {"MOESAIC_LOG=loud"}}).err,
        "warning: MOESAIC_LOG=loud is not a log level; choose one of debug, info, warning, error\n")
        << command.front();
  }
}

TEST_F(BadInput, StandardOutputThatIsLost) {
  const std::string program = shell_quoted(MOESAIC_PROGRAM);
  for (const std::string verb :
       {"--help", "train --help", "list models", "list models --json", "doctor", "data list"}) {
    for (const std::string lost : {">/dev/full", ">&-"}) {
      const char* const why = lost == ">&-" ? "Bad file descriptor" : "No space left on device";
      expect_one_line_error(run_command({"sh", "-c", program + " " + verb + " " + lost}), 1,
                            std::string("standard output: cannot write: ") + why);
    }
  }
  if (!have_fashion_mnist())
    GTEST_SKIP() << "needs Fashion-MNIST: moesaic data fetch fashion-mnist";
  const std::string checkpoint = shell_quoted((smoke_run() / "checkpoints/finetune").string());
  for (const std::string& verb : {"eval " + checkpoint + " --json", "inspect " + checkpoint}) {
    expect_one_line_error(run_command({"sh", "-c", program + " " + verb + " >/dev/full"}), 1,
                          "standard output: cannot write: No space left on device");
  }
}

TEST_F(BadInput, WhatIsThereIsNeverWrittenOver) {
  NEEDS_FASHION_MNIST();
  const fs::path checkpoint = copy_checkpoint("finetune");
  const std::string weights = (checkpoint / "model.safetensors").string();
  const std::string before = sha256_file_hex(weights);
  for (const char* format : {"torchscript", "safetensors"}) {
    expect_one_line_error(
        run_program({"export", checkpoint.string(), "--format", format, "--out", weights}), 2,
        "already exists");
  }
  expect_one_line_error(run_program({"export", checkpoint.string(), "--format", "torchscript",
                                     "--out", checkpoint.string()}),
                        2, "already exists");
  expect_one_line_error(
      run_program({"predict", checkpoint.string(), "--input", weights, "--output", weights}), 2,
      "already exists");
  EXPECT_EQ(sha256_file_hex(weights), before);
  expect_one_line_error(run_program({"reproduce", "quickstart", "--out", text_path("")}), 2,
                        "something that is not this experiment");
}

TEST_F(BadInput, ASettingThatNoMachineCanHold) {
  NEEDS_FASHION_MNIST();
  expect_one_line_error(train(smoke_recipe(), {"model.encoder.num_layers=1000000000"}), 2,
                        "between 1 and 1024");
  const std::vector<std::string> huge = {"model.encoder.mlp_dim=1048576",
                                         "model.encoder.moe.num_experts=65536"};
  expect_one_line_error(train(smoke_recipe(), huge), 2, "this machine has");
  const auto plan = train(smoke_recipe(), {huge[0], huge[1], "--dry-run"});
  EXPECT_EQ(plan.exit_code, 0) << plan.err;
  EXPECT_NE(plan.out.find("; this machine has"), std::string::npos) << plan.out;
  for (const char* dry : {"--dry-run", "seed=1"}) {
    expect_one_line_error(
        train(smoke_recipe(),
              {"phases.pretrain.trainable=[\"" + std::string(20000, '(') + "\"]", dry}),
        2, "at most 1000");
    expect_one_line_error(train(smoke_recipe(), {"phases.pretrain.augment.max_shift=100", dry}), 2,
                          "choose 0 to 27");
    expect_one_line_error(train(smoke_recipe(), {"model.encoder.moe.group_size=7", dry}), 2,
                          "must divide");
    expect_one_line_error(
        train(smoke_recipe(), {"model.encoder.moe.router.dispatcher.capacity_factor=1e300", dry}),
        2, "between 0 and 1000000");
  }
  expect_no_run();
}

TEST_F(BadInput, ADryRunMayLackItsInitButNotFitIt) {
  const std::string first = (smoke_run() / "checkpoints/pretrain").string();
  if (IsSkipped()) return;
  const auto planned = [&](const std::string& init, const std::vector<std::string>& changes = {}) {
    std::vector<std::string> settings = {"init=" + init, "--dry-run"};
    settings.insert(settings.end(), changes.begin(), changes.end());
    return train(smoke_recipe(), settings);
  };
  const auto absent = planned(text_path("absent"));
  EXPECT_EQ(absent.exit_code, 0) << absent.err;
  EXPECT_NE(absent.err.find("warning: init: '" + text_path("absent") +
                            "' is not there; shapes are checked from the recipe alone\n"),
            std::string::npos)
      << absent.err;
  const auto fits = planned(first);
  EXPECT_EQ(fits.exit_code, 0) << fits.err;
  EXPECT_EQ(fits.out.find("not found"), std::string::npos) << fits.out;
  expect_one_line_error(planned(first, {"model.encoder.mlp_dim=8"}), 1, "blocks.0.mlp");
  fs::create_directories(path("empty"));
  EXPECT_NE(planned(text_path("empty")).exit_code, 0);
  fs::copy(first, path("damaged"), fs::copy_options::recursive);
  fs::resize_file(path("damaged/model.safetensors"), 100);
  EXPECT_EQ(planned(text_path("damaged")).exit_code, 1);
  write("file", "no folder");
  EXPECT_NE(planned(text_path("file")).exit_code, 0);
}

TEST_F(BadInput, AWrongValueHasItsPlace) {
  NEEDS_FASHION_MNIST();
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"\"data\": \"fashion-mnist\"", "\"data\": \"fashion-mnits\""},
      {"\"criterion\": \"router-norm-change\"", "\"criterion\": \"router-norm\""},
      {"\"pretrained\": \"pretrain\"", "\"pretrained\": \"pretrian\""},
      {"\"keep\": 0.5", "\"keep\": \"half\""},
      {"\"keep\": 0.5", "\"keep\": true"},
      {"\"num_classes\": 10", "\"num_classes\": 11"},
      {"\"importance\"", "\"importanc\""}};
  for (const auto& [from, to] : cases) {
    const std::string recipe = recipe_with(from, to);
    const std::string text = read_text(recipe);
    const size_t place = text.find(to), value = place + to.find(": ") + 2;
    const size_t position = to.find(": ") == std::string::npos ? place : value;
    const auto line =
        std::count(text.begin(), text.begin() + static_cast<long>(position), '\n') + 1;
    const size_t column = position - text.rfind('\n', position);
    expect_one_line_error(train(recipe), 2, fmt::format("recipe.json:{}:{}: ", line, column));
  }
  expect_no_run();
}

TEST_F(BadInput, ACheckpointOrAnImageThatIsNotFinite) {
  NEEDS_FASHION_MNIST();
  const fs::path checkpoint = copy_checkpoint("finetune");
  write_tensors(path("in.safetensors"), {{"images", torch::full({3, 1, 28, 28}, NAN)}});
  expect_one_line_error(
      run_program({"predict", checkpoint.string(), "--input", text_path("in.safetensors"),
                   "--output", text_path("out.safetensors")}),
      1, "in.safetensors: image 0");
  auto tensors = read_tensors(checkpoint / "model.safetensors");
  tensors.at("head.bias").fill_(NAN);
  write_tensors(checkpoint / "model.safetensors", tensors);
  auto manifest = ordered_json::parse(read_text(checkpoint / "MANIFEST.json"));
  manifest["files"]["model.safetensors"]["sha256"] =
      sha256_file_hex(checkpoint / "model.safetensors");
  manifest["files"]["model.safetensors"]["size"] = fs::file_size(checkpoint / "model.safetensors");
  write_atomic(checkpoint / "MANIFEST.json", manifest.dump(2));
  expect_one_line_error(run_program({"eval", checkpoint.string()}), 1, checkpoint.string());
}

}  // namespace
}  // namespace moesaic::testing
