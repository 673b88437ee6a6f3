// SPDX-License-Identifier: Apache-2.0
// Whatever is wrong gets one line that says where and what, the right exit code, and leaves nothing
// behind.
#include <fmt/format.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>

#include "integration/program.h"
#include "moesaic/base/file.h"
#include "moesaic/base/hash.h"
#include "moesaic/base/process.h"
#include "moesaic/checkpoint/tensors.h"
#include "support/matchers.h"

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
  ProgramResult train(const std::string& recipe, const Strings& more = {}) const {
    return run_program(joined({"train", recipe, "--out", text_path("run")}, more));
  }
  void expect_no_run() const { EXPECT_FALSE(fs::exists(path("run"))); }
  std::string copy_checkpoint(const std::string& phase) const {
    fs::copy(smoke_run() / "checkpoints" / phase, path("copy"), fs::copy_options::recursive);
    return text_path("copy");
  }
  /// Makes the checkpoint's manifest that of an altered file, as someone with patience would.
  void update_manifest(const fs::path& checkpoint, const std::string& file) const {
    auto manifest = ordered_json::parse(read_text(checkpoint / "MANIFEST.json"));
    manifest["files"][file] = {{"size", fs::file_size(checkpoint / file)},
                               {"sha256", sha256_file_hex(checkpoint / file)}};
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
  expect_one_line_error(train(smoke_recipe(), {"pretrained=x"}), 2, "did you mean init or ");
  expect_one_line_error(train(smoke_recipe(), {"clip_grad=1"}), 2, "clip_norm?");
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
  expect_usage_error({"trane"}, "unknown subcommand 'trane'; choose one of train");
  expect_usage_error({"traim", "x"}, "did you mean 'train'?");
  expect_usage_error({"data", "verfy", "x"}, "did you mean 'verify'?");
  expect_usage_error({"bench", "operatros"}, "did you mean 'operators'?");
  expect_usage_error({"bench", "operators", "--write", "/no/such/folder/x.json"},
                     "no such folder /no/such/folder; nothing is at '/no'");
  write("thesis.json", "{}");
  expect_usage_error({"bench", "operators", "--write", text_path("thesis.json")},
                     "the file there was not written by bench; name a new one");
  expect_usage_error({"bench", "operators", "--rows", "foo*"},
                     "--rows: 'operators' has no row like 'foo*'; choose one of cpu/*");
  expect_usage_error({"bench", "data", "--rows", "cpu/loadr"}, "did you mean 'cpu/loader'?");
  expect_usage_error({"bench", "./run", "--rows", "*"}, "--rows is for a benchmark");
  expect_usage_error({"--jsn"}, "unknown option '--jsn'");
  expect_usage_error({"prune", "--kep", "4"}, "did you mean '--keep'?");
  expect_usage_error({"train", "x.json", "--dryrun"},
                     "unknown option '--dryrun'; settings of a recipe have no dashes: "
                     "dryrun=VALUE; did you mean '--dry-run'?");
  expect_usage_error({}, "error: choose one of train, eval");
  expect_usage_error({"data"}, "error: data: choose one of list, fetch");
  expect_usage_error({"train"},
                     "error: train: the recipe is missing; moesaic list recipes lists some");
  expect_usage_error({"bench", "x", "y"}, "error: bench: unexpected argument 'y'");
  expect_usage_error({"prune", "--out"}, "error: prune: --out needs a value");
  expect_usage_error({"reproduce", "table1"}, "did you mean 'clusters/table1'?");
  expect_usage_error({"list", "modles"}, "did you mean 'models'");
  expect_usage_error({"data", "verify", "fashion-mnits"}, "fashion-mnist");
  expect_usage_error({"reproduce", "quickstrat"}, "quickstart");
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
      overwrite(file, fs::file_size(file) / 2, "altered!");
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
  must_succeed(run_command({"gzip", "-d", file.string() + ".gz"}));
  overwrite(file, 12345, "\x77");
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
  overwrite(file, fs::file_size(file) - 100, "\x5a");
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
  const std::vector<Strings> verbs = {
      {"eval", from},
      {"inspect", from},
      {"inspect", from, from},
      {"export", from, "--format", "safetensors", "--out", text_path("out")},
      {"prune", "--pretrained", from, "--finetuned", from, "--keep", "0.5", "--out",
       text_path("pruned")}};
  for (const Strings& verb : verbs) {
    must_succeed(verb);
  }
}

TEST_F(BadInput, DataWithAnotherNumberOfClasses) {
  NEEDS_FASHION_MNIST();
  const std::string checkpoint = (smoke_run() / "checkpoints/finetune").string();
  const auto result = run_program({"eval", checkpoint, "--data", "fashion-mnist"});
  expect_one_line_error(result, 2, "the class 'T-shirt/top' is not a class of the network");
  EXPECT_THAT(result.err, HasSubstr("Sandal, Sneaker, Ankle boot"));
  expect_one_line_error(train(smoke_recipe(), {"phases.0.data=fashion-mnist-footwear"}), 2, "3");
  expect_no_run();
}

TEST_F(BadInput, APrunedCheckpointLoadedAsUnpruned) {
  NEEDS_FASHION_MNIST();
  const fs::path checkpoint = copy_checkpoint("prune");
  auto config = ordered_json::parse(read_text(checkpoint / "config.json"));
  config["model"]["encoder"]["moe"]["kept_experts"] = ordered_json::object();
  write_atomic(checkpoint / "config.json", config.dump(2));
  update_manifest(checkpoint, "config.json");
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
  expect_usage_error({"train", smoke_recipe(), "--out", run}, "--resume");
  expect_usage_error({"train", smoke_recipe(), "seed=99", "--out", run, "--resume"}, "seed");
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
  expect_one_line_error(train(smoke_recipe(), {"--device", "cuda"}), 2, "cpu");
  expect_no_run();
}

TEST_F(BadInput, APathThatIsNearlyRight) {
  write("smoke.json", "{}");
  write("file.txt", "x");
  expect_one_line_error(train(text_path("smok.json")), 2,
                        "did you mean '" + text_path("smoke.json") + "'?");
  expect_one_line_error(train(text_path("")), 2, "a folder, not a recipe");
  expect_usage_error({"train", "seed=2"}, "the recipe comes first");
  const std::string name(300, 'x');
  expect_one_line_error(run_program({"eval", name}), 1, "File name too long");
  expect_one_line_error(run_program({"inspect", name}), 1, "File name too long");
  expect_one_line_error(run_program({"train", smoke_recipe(), "--out", text_path(name)}), 1,
                        "File name too long");
  must_succeed(run_command({"mkfifo", text_path("pipe")}));
  expect_usage_error({"inspect", text_path("pipe")}, "not a regular file");
  expect_one_line_error(train(text_path("pipe")), 2, "pipe: not a regular file");
  expect_one_line_error(train("/dev/zero"), 2, "/dev/zero: not a regular file");
}

TEST_F(BadInput, AnEmptyName) {
  for (const Strings& command :
       std::vector<Strings>{{"export", "x", "--format", "torchscript", "--out", ""},
                            {"prune", "--finetuned", "x", "--keep", "2", "--out", ""},
                            {"predict", "x", "--input", "y", "--output", ""},
                            {"train", smoke_recipe(), "--out", ""},
                            {"reproduce", "quickstart", "--out", ""},
                            {"eval", ""}}) {
    expect_usage_error(command, "must not be empty");
  }
}

TEST_F(BadInput, ANumberThatIsOutOfRange) {
  for (const char* size : {"0", "-3", "1e9", "4000000000", "many"}) {
    expect_usage_error({"eval", "x", "--batch-size", size},
                       "must be a whole number between 1 and 1048576");
    expect_usage_error({"predict", "x", "--input", "y", "--output", "z", "--batch-size", size},
                       "between 1 and 1048576");
  }
  expect_usage_error({"prune", "--finetuned", "x", "--keep", "2", "--out", "y", "--seed", "-1"},
                     "between 0 and");
}

TEST_F(BadInput, AdviceToFetchOnlyWhatHasAnAddress) {
  const Strings nowhere = {"MOESAIC_DATA=" + text_path("none")};
  const auto result = run_program({"doctor"}, {.environment = nowhere});
  EXPECT_THAT(result.out, HasSubstr("imagenet is not here; place or link it at "));
  expect_one_line_error(
      run_program({"data", "fetch", "imagenet"}, {.environment = nowhere}), 1,
      "place or link the files at " + text_path("none/imagenet") + ": train/, val/");
}

TEST_F(BadInput, MissingDataNameTheirArgument) {
  expect_usage_error({"eval", "x", "--data", "mnits"},
                     "--data: unknown dataset 'mnits' (a folder of images needs a slash in its "
                     "name); did you mean 'mnist'?");
  expect_usage_error({"eval", "x", "--data", "./nonsense.json"},
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
  EXPECT_THAT(pets.out, HasSubstr("in its folders; 1 left out: 1 file not called .jpg, "));
  const auto fetched = run_program({"data", "fetch", "clusters-figure1"});
  EXPECT_EQ(fetched.out, "clusters-figure1: generated when opened, nothing to fetch\n");
}

TEST_F(BadInput, ALevelOfMessagesThatIsNone) {
  for (const Strings& command :
       {Strings{"list", "models"}, {"data", "list"}, {"train", "--help"}}) {
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
  NEEDS_FASHION_MNIST();
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
    expect_usage_error({"export", checkpoint.string(), "--format", format, "--out", weights},
                       "already exists");
  }
  expect_usage_error(
      {"export", checkpoint.string(), "--format", "torchscript", "--out", checkpoint.string()},
      "already exists");
  expect_usage_error({"predict", checkpoint.string(), "--input", weights, "--output", weights},
                     "already exists");
  EXPECT_EQ(sha256_file_hex(weights), before);
  expect_usage_error({"reproduce", "quickstart", "--out", text_path("")},
                     "something that is not this experiment");
}

TEST_F(BadInput, ASettingThatNoMachineCanHold) {
  NEEDS_FASHION_MNIST();
  expect_one_line_error(train(smoke_recipe(), {"model.encoder.num_layers=1000000000"}), 2,
                        "between 1 and 1024");
  const Strings huge = {"model.encoder.mlp_dim=1048576", "model.encoder.moe.num_experts=65536"};
  expect_one_line_error(train(smoke_recipe(), huge), 2, "this machine has");
  const auto plan = must_succeed(train(smoke_recipe(), {huge[0], huge[1], "--dry-run"}));
  EXPECT_THAT(plan.out, HasSubstr("; this machine has"));
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
  NEEDS_FASHION_MNIST();
  const std::string first = (smoke_run() / "checkpoints/pretrain").string();
  const auto planned = [&](const std::string& init, const Strings& changes = {}) {
    return train(smoke_recipe(), joined({"init=" + init, "--dry-run"}, changes));
  };
  const auto absent = must_succeed(planned(text_path("absent")));
  EXPECT_THAT(absent.err, HasSubstr("warning: init: '" + text_path("absent") +
                                    "' is not there; shapes are checked from the recipe alone\n"));
  const auto fits = must_succeed(planned(first));
  EXPECT_THAT(fits.out, Not(HasSubstr("not found")));
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
  update_manifest(checkpoint, "model.safetensors");
  expect_one_line_error(run_program({"eval", checkpoint.string()}), 1, checkpoint.string());
}

}  // namespace
}  // namespace moesaic::testing
