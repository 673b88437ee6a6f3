// SPDX-License-Identifier: Apache-2.0
// What someone types who has not read the pages: one line that says what to type instead.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <regex>
#include <sstream>

#include "data/png_bytes.h"
#include "integration/program.h"
#include "moesaic/base/process.h"
#include "support/help_texts.h"

namespace moesaic::testing {
namespace {

namespace fs = std::filesystem;

class Newcomer : public ProgramTest {};

TEST_F(Newcomer, WhatIsNoRecipe) {
  const auto named = run_program({"train", "smoke"});
  expect_one_line_error(named, 2, "models/vmoe/recipes/smoke.json");
  expect_one_line_error(run_program({"train", "no-such-thing-at-all"}), 2, "moesaic list recipes");
  fs::create_directories(path("images/train"));
  expect_one_line_error(run_program({"train", text_path("images")}), 2,
                        "phases.0.data=" + text_path("images"));
  fs::create_directories(path("old/checkpoints"));
  write("old/config.json", "{}");
  expect_one_line_error(run_program({"train", text_path("old")}), 2, "/old/config.json --out ");
  write("README.md", "no tensors, only words");
  const auto words = run_program({"inspect", text_path("README.md")});
  expect_one_line_error(
      words, 2, "README.md: not a safetensors file, nor another kind that is read here: a run, a ");
  for (const char* inner : {"bytes long", "at byte"}) {
    EXPECT_EQ(words.err.find(inner), std::string::npos) << words.err;
  }
}

TEST_F(Newcomer, SuggestionsAreOfWhatTheVerbTakes) {
  for (const char* folder : {"smoke", "sub", "rn1"}) fs::create_directories(path(folder));
  write("sub/base.json", "{}");
  write("sub/mine.json", R"({"extends": "bsae.json"})");
  const auto misspelt = run_program({"train", text_path("smke")});
  expect_one_line_error(misspelt, 2, "models/vmoe/recipes/smoke.json");
  EXPECT_EQ(misspelt.err.find("did you mean '" + text_path("smoke")), std::string::npos)
      << misspelt.err;
  expect_one_line_error(run_program({"train", text_path("sub/mine.json")}), 2,
                        "no such file; did you mean 'base.json'?");
  EXPECT_EQ(run_program({"eval", text_path("rn")}).err.find("did you mean"), std::string::npos);
  fs::create_directories(path("rn1/checkpoints/step_1"));
  expect_one_line_error(run_program({"eval", text_path("rn")}), 2,
                        "did you mean '" + text_path("rn1") + "'?");
  const auto bench =
      run_command({"sh", "-c",
                   fmt::format("cd {}; exec {} bench rn", shell_quoted(text_path("")),
                               shell_quoted(MOESAIC_PROGRAM))});
  expect_one_line_error(bench, 2,
                        "'rn' is neither a benchmark nor a run or checkpoint; did you mean 'rn1'?");
}

/// Writes images of two classes and a recipe that says no size, and trains it.
class NewcomersImages : public ProgramTest {
 protected:
  NewcomersImages() {
    for (uint32_t i = 0; i < 12; ++i) {
      test::Bytes pixels(size_t{3} * 16 * 16);
      for (size_t p = 0; p < pixels.size(); ++p) {
        pixels[p] = static_cast<uint8_t>((i * 40 + p * 37) % 251);
      }
      for (const char* split : {"train", "val"}) {
        test::write_file(path(fmt::format("images/{}/{}/{}.png", split, i % 2 ? "b" : "a", i)),
                         test::png_bytes(16, 16, pixels));
      }
    }
    write("mine.json", fmt::format(R"({{"name": "mine", "seed": 3, "checkpoint_every": 0,
        "model": {{"name": "vmoe", "image_size": 16, "channels": 3, "patch_size": 8,
          "hidden_size": 16, "num_classes": 2, "encoder": {{"num_layers": 2, "num_heads": 2,
            "mlp_dim": 32, "moe": {{"layers": [1], "num_experts": 4}}}}}},
        "phases": [{{"name": "train", "data": "{}", "batch_size": 4, "steps": 6,
          "optimizer": {{"name": "adamw", "lr": 1e-3}}}}]}})",
                                   text_path("images")));
  }
  ProgramResult train(std::vector<std::string> more) const {
    more.insert(more.begin(), {"train", text_path("mine.json")});
    return run_program(more);
  }
};

TEST_F(NewcomersImages, BecomeAsLargeAsTheNetworkTakesThem) {
  const auto planned = train({"--dry-run"});
  EXPECT_EQ(planned.exit_code, 0) << planned.err;
  const auto trained = train({"--out", text_path("run")});
  ASSERT_EQ(trained.exit_code, 0) << trained.err;
  EXPECT_NE(trained.err.find("\nbest: "), std::string::npos) << trained.err;
  EXPECT_NE(trained.err.find(text_path("run") + "/best\n"), std::string::npos) << trained.err;
  EXPECT_EQ(run_program({"eval", text_path("run")}).exit_code, 0);
  const auto held = run_program({"inspect", text_path("run")});
  EXPECT_NE(held.out.find("\n  network    vmoe, image_size 16, channels 3, patch_size 8"),
            std::string::npos)
      << held.out;
  for (const char* line : {"\n  encoder: num_layers 2, num_heads 2", "\n  encoder.moe: layers [1]",
                           "\n  encoder.moe.router: name \"NoisyTopExpertsPerItemRouter\"",
                           "\n  encoder.moe.router.dispatcher: capacity 0, capacity_factor 0.0",
                           "\n  state      step 6, phase \"train\""}) {
    EXPECT_NE(held.out.find(line), std::string::npos) << line << held.out;
  }
  expect_one_line_error(run_program({"eval", text_path("rn")}), 2,
                        "did you mean '" + text_path("run") + "'?");
  expect_one_line_error(train({"phases.0.steps=8", "--resume", "--out", text_path("run")}), 2,
                        ", where init=" + text_path("run") + " trains its network on");
  expect_one_line_error(run_program({"predict", text_path("images/val/a/0.png"), text_path("run")}),
                        2, "the checkpoint comes first, then the images: ");
  for (const char* size : {"model.image_size=32", "model.image_size=[16,32]"}) {
    const auto other = train({size, "--dry-run"});
    EXPECT_EQ(other.exit_code, 0) << other.err;
  }
}

TEST_F(NewcomersImages, AFolderWithoutImagesIsNoReasonForAnotherOutput) {
  fs::create_directories(path("images/train/c"));
  const auto refused = train({"--dry-run"});
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_NE(refused.err.find("has 3 classes, the model has 2; 1 of the classes has no images "
                             "('c'): remove it if that is a mistake; set "),
            std::string::npos)
      << refused.err;
}

TEST_F(NewcomersImages, SuggestionsLeadToSomethingThatWorks) {
  const auto refused = [&](const std::string& setting, const std::string& text) {
    expect_one_line_error(train({setting, "--dry-run"}), 2, text);
  };
  refused("phases.0.data=" + text_path("imagse"), "did you mean '" + text_path("images") + "'?");
  refused("lr=0.1", "did you mean phases.train.optimizer.lr?");
  refused("batch=3", "unknown key 'batch'; did you mean phases.train.batch_size");
  refused("num_experts=8", "model.encoder.moe.num_experts?");
  refused("phases.optimizer.lr=1e-3", "e.g. phases.train.optimizer");
  refused("phases.1.steps=3", "choose one of train, e.g. phases.train.steps");
  refused("phases.b.steps=3", "did you mean phases.train.steps?");
  refused("phases.b.schedule.name=linear", "did you mean phases.train.schedule.name?");
  refused("phases.schedule.name=linear", "e.g. phases.train.schedule.name");
  refused("phases.0.optimizer=sgd", R"(write {"name": "sgd"} or phases.0.optimizer.name=sgd)");
  EXPECT_EQ(train({"phases.train.optimizer.lr=0.1", "--dry-run"}).exit_code, 0);
  EXPECT_EQ(train({"model.encoder.moe.num_experts=8", "--dry-run"}).exit_code, 0);
  EXPECT_EQ(train({"phases.0.optimizer.name=sgd", "--dry-run"}).exit_code, 0);
  const auto idle =
      train({"phases.0.trainable=[\"head\"]", "phases.0.frozen=[\"embedding\"]", "--dry-run"});
  EXPECT_EQ(idle.exit_code, 0);
  EXPECT_NE(idle.err.find("warning: phase 'train': 'embedding' in frozen has no effect: trainable "
                          "selects none of its parameters"),
            std::string::npos)
      << idle.err;
  expect_one_line_error(train({"--seed", "3"}), 2,
                        "unknown option '--seed'; settings of a recipe have no dashes: seed=VALUE");
  const auto missing = train({"init=runs/nope", "--dry-run"});
  EXPECT_EQ(missing.exit_code, 0);
  EXPECT_NE(missing.err.find("warning: init: 'runs/nope' is not there"), std::string::npos)
      << missing.err;
  const auto no_run = train({"init=" + text_path("images"), "--dry-run"});
  EXPECT_NE(no_run.exit_code, 0);
  EXPECT_EQ(no_run.err.find("error: "), 0U) << no_run.err;
  EXPECT_NE(no_run.err.find("images: neither a checkpoint"), std::string::npos) << no_run.err;
}

/// Returns the texts of the positionals and options in help: what its right column says of each.
std::vector<std::string> option_texts(const std::string& help) {
  constexpr size_t kColumn = 30;
  std::vector<std::string> texts;
  std::istringstream lines(help.substr(0, help.find("\n\nSubcommands:")));
  for (std::string line; std::getline(lines, line) && !line.starts_with("Example: ");) {
    if (line.starts_with("  ") && line.size() > 2 && line[2] != ' ') texts.emplace_back();
    const bool is_text = line.size() > kColumn && line[0] == ' ' && line[kColumn - 1] == ' ';
    if (texts.empty() || !is_text) continue;
    if (line[kColumn] == '-' || line.compare(kColumn, 5, "with:") == 0) continue;  // Of a name.
    texts.back() += (texts.back().empty() ? "" : " ") + line.substr(kColumn);
  }
  return texts;
}

// A text is read without its neighbours: "seed of ..." and not "of ...", "or ...".
TEST_F(Newcomer, TextsOfHelpStandAlone) {
  const std::vector<std::vector<std::string>> commands = {
      {},          {"train"},        {"eval"},  {"predict"}, {"prune"},     {"export"},
      {"inspect"}, {"data", "pack"}, {"list"},  {"import"},  {"reproduce"}, {"bench"},
      {"compare"}, {"plot"},         {"doctor"}};
  for (std::vector<std::string> command : commands) {
    command.emplace_back("--help");
    const std::string text = run_program(command).out;
    EXPECT_FALSE(text.empty());
    EXPECT_EQ(text.find("... ..."), std::string::npos) << text;  // Several values, said twice.
    for (const std::string& meaning : option_texts(text)) {
      EXPECT_EQ(fault_of(meaning), "") << command.front() << ": " << meaning;
    }
  }
  const std::string prune = run_program({"prune", "--help"}).out;
  EXPECT_NE(prune.find("largest loss of accuracy on the validation split"), std::string::npos);
  EXPECT_NE(prune.find("\n" + std::string(30, ' ') + "merge: the kept expert"), std::string::npos)
      << prune;
  EXPECT_NE(prune.find("\n  checkpoint CHECKPOINT REQUIRED\n"), std::string::npos) << prune;
  EXPECT_NE(
      prune.find("\n  --finetuned CHECKPOINT      another name of the positional checkpoint\n"),
      std::string::npos)
      << prune;
  EXPECT_NE(prune.find("\n  --exclude-blocks BLOCKS ... blocks that"), std::string::npos) << prune;
  EXPECT_EQ(prune.find("\n\n\n"), std::string::npos) << prune;
  EXPECT_LT(prune.find("\n  --keep "), prune.find("\n  --criterion ")) << prune;
  expect_one_line_error(run_program({"prune"}), 2,
                        "prune: checkpoint or --finetuned is required (see moesaic prune --help)");
}

/// Returns the names in the list of a help's subcommands, whose texts are checked: sentences that
/// fit.
std::vector<std::string> verbs_in(const std::string& help) {
  std::vector<std::string> names;
  std::istringstream lines(help.substr(help.find("Subcommands:\n")));
  std::string line;
  std::getline(lines, line);
  while (std::getline(lines, line) && !line.empty()) {
    std::istringstream words(line);
    std::string name, text;
    words >> name >> std::ws;
    std::getline(words, text);
    EXPECT_TRUE(std::regex_match(text, std::regex("[A-Z].*[^.]\\."))) << line;
    EXPECT_LE(line.size(), 100U) << line;
    names.push_back(name);
  }
  return names;
}

TEST_F(Newcomer, HelpHasOneStyleAndAnExampleForEachVerb) {
  const std::string root = run_program({"--help"}).out;
  std::vector<std::string> verbs = verbs_in(root);
  ASSERT_EQ(verbs.size(), 14U);
  EXPECT_EQ(verbs[0] + " " + verbs[1] + " " + verbs[2], "train eval predict");
  EXPECT_NE(root.find("\nExit codes: 0 done, 1 failed, 2 wrong use, "), std::string::npos) << root;
  EXPECT_NE(root.find("\nExample: moesaic train models/vmoe/recipes/smoke.json --out "),
            std::string::npos)
      << root;
  for (const std::string& name : verbs_in(run_program({"data", "--help"}).out)) {
    verbs.push_back("data " + name);
  }
  for (const std::string& verb : verbs) {
    std::vector<std::string> words = {verb};
    if (verb.starts_with("data ")) words = {"data", verb.substr(5)};
    words.emplace_back("--help");
    const std::string help = run_program(words).out;
    std::smatch example;
    ASSERT_TRUE(std::regex_search(help, example, std::regex("\nExample: moesaic (.*)\n"))) << help;
    const std::string call = example[1];
    EXPECT_TRUE((call + " ").starts_with(verb + " ")) << call;
    EXPECT_EQ(help.find("Exit codes"), std::string::npos) << help;
    const std::regex option(" (--[a-z-]+)");
    for (std::sregex_iterator it(call.begin(), call.end(), option), end; it != end; ++it) {
      EXPECT_NE(help.find("\n  " + (*it)[1].str() + " "), std::string::npos) << call;
    }
    words.pop_back();
    words.insert(words.begin(), "help");
    EXPECT_EQ(run_program(words).out, help);
  }
}

TEST_F(Newcomer, HelpAndListsSayWhatThingsAre) {
  const auto router = run_program({"train", "--help", "router"});
  ASSERT_EQ(router.exit_code, 0) << router.err;
  for (const char* setting : {"model.encoder.moe.router.num_selected_experts",
                              "model.encoder.moe.router.dispatcher.capacity_factor"}) {
    EXPECT_NE(router.out.find(setting), std::string::npos) << router.out;
  }
  expect_one_line_error(run_program({"help", "trian"}), 2, "did you mean 'train'?");
  const std::string phases = run_program({"train", "--help", "phases"}).out;
  EXPECT_EQ(phases.find("phases.N.optimizer.lr "), phases.rfind("phases.N.optimizer.lr "));
  EXPECT_NE(phases.find("moesaic train --help kind NAME"), std::string::npos) << phases;
  EXPECT_NE(phases.find("momentum of sgd: factor on the running sum of gradients"),
            std::string::npos)
      << phases;
  const std::string patches = run_program({"train", "--help", "kind", "patch_sgd"}).out;
  EXPECT_NE(patches.find("phases.N.lr  "), std::string::npos) << patches;
  EXPECT_EQ(patches.find("patch_sgd: "), std::string::npos) << patches;
  EXPECT_EQ(patches.find("phases.N.data"), std::string::npos) << patches;
  expect_one_line_error(run_program({"train", "--help", "kind", "patch_sdg"}), 2,
                        "did you mean 'patch_sgd'?");
  const std::string described = run_program({"data", "--help", "describe"}).out;
  for (const char* text : {"\nvalidation  number or null", "moesaic data --help format NAME"}) {
    EXPECT_NE(described.find(text), std::string::npos) << described;
  }
  EXPECT_EQ(run_program({"data", "--help", "describe", "mean"}).out.find("mean  list of number"),
            0u);
  EXPECT_NE(
      run_program({"data", "--help", "format", "image_folder"}).out.find("num_classes  integer"),
      std::string::npos);
  EXPECT_NE(run_program({"data", "--help"}).out.find("describe [KEY]"), std::string::npos);
  const std::string datasets = run_program({"data", "list"}).out;
  EXPECT_NE(datasets.find("    10 classes  "), std::string::npos) << datasets;
  EXPECT_EQ(datasets.find(" 0 classes"), std::string::npos) << datasets;
  EXPECT_NE(run_program({"data", "pack", "--help"}).out.find("--shards"), std::string::npos);
  expect_one_line_error(run_program({"data", "--help", "describe", "validaton"}), 2,
                        "did you mean 'validation'?");
  const auto kinds = run_program({"list"});
  ASSERT_EQ(kinds.exit_code, 0) << kinds.err;
  EXPECT_NE(kinds.out.find("criteria     rankings of experts for moesaic prune"), std::string::npos)
      << kinds.out;
  for (const auto& [kind, line] :
       {std::pair(
            "criteria",
            "mean of gate times norm of output over the expert's tokens, as in arXiv:2510.13999 "
            "(needs images)"),
        {"experiments", "Dispatch entropy over training"},
        {"phases", "steps of an optimizer on batches, by the gradients of a loss, for any network"},
        {"probes", "proficiency of routers: fraction of class-deciding patterns that they select"},
        {"recipes", "Pretraining, fine-tuning, pruning and recovery in seconds"}}) {
    const auto listed = run_program({"list", kind});
    EXPECT_EQ(listed.exit_code, 0) << listed.err;
    EXPECT_NE(listed.out.find(line), std::string::npos) << listed.out;
  }
}

TEST_F(Newcomer, EverythingThatIsListedSaysWhatItIs) {
  const auto kinds = run_program({"list", "--json"}).json();
  EXPECT_EQ(kinds.size(), 11U);
  for (const std::string kind : kinds) {
    if (kind == "settings") continue;  // Below.
    std::map<std::string, std::string> texts;
    std::istringstream lines(run_program({"list", kind}).out);
    for (std::string line; std::getline(lines, line);) {
      std::istringstream words(line);
      std::string name, text;
      words >> name >> std::ws;
      std::getline(words, text);
      texts[name] = text;
    }
    const auto names = run_program({"list", kind, "--json"}).json();
    for (const std::string name : names) {
      const std::string& text = texts[name];
      EXPECT_GE(std::count(text.begin(), text.end(), ' '), 2)
          << kind << " " << name << ": " << text;
      for (const char* other : {"The same", "the same", "sum of that", "growth of that"}) {
        EXPECT_FALSE(text.starts_with(other)) << kind << " " << name << ": " << text;
      }
    }
  }
}

TEST_F(Newcomer, EverySettingIsListedWithWhatHasIt) {
  std::map<std::string, std::map<std::string, nlohmann::json>> found;
  for (const auto& group : run_program({"list", "settings", "--json"}).json()) {
    for (const auto& row : group.at("settings")) {
      EXPECT_FALSE(row.at("meaning").get<std::string>().empty()) << row;
      found[group.at("of").get<std::string>()][row.at("key").get<std::string>()] = row;
    }
  }
  const auto& lr = found.at("run").at("phases.N.optimizer.lr");
  EXPECT_EQ(lr.at("type"), "number");
  EXPECT_TRUE(found.at("model vmoe").contains("model.encoder.moe.num_experts"));
  EXPECT_FALSE(found.at("run").contains("model.encoder.moe.num_experts"));
  EXPECT_TRUE(found.at("format image_folder").contains("num_classes"));
  EXPECT_TRUE(found.at("experiment runs").contains("probes"));
  const std::string text = run_program({"list", "settings"}).out;
  EXPECT_NE(text.find("\nmodel vmoe\n\nmodel."), std::string::npos) << text.substr(0, 400);
}

TEST_F(Newcomer, AFileInPlaceOfAFolder) {
  const std::string recipe =
      (fs::path(MOESAIC_TEST_SOURCE_DIR) / "models/clusters/recipes/smoke.json").string();
  expect_one_line_error(run_program({"train", recipe, "--out", "/dev/full/x"}), 2,
                        "--out: '/dev/full' is not a folder");
  expect_one_line_error(run_program({"eval", "/dev/full/x"}), 2, "'/dev/full' is not a folder");
  expect_one_line_error(run_program({"reproduce", "clusters/table1", "--out", "/dev/full/x"}), 2,
                        "--out: '/dev/full' is not a folder");
}

TEST_F(Newcomer, AFileOfAnotherKindIsWrongUseInEveryVerb) {
  write("notes.txt", "no tensors, only words");
  for (const std::string& name : {std::string("/dev/null"), text_path("notes.txt")}) {
    const std::string out = text_path("out");
    for (const std::vector<std::string>& command : std::vector<std::vector<std::string>>{
             {"train", name},
             {"eval", name},
             {"inspect", name},
             {"bench", name},
             {"predict", name, "--input", name, "--output", out},
             {"prune", name, "--keep", "1", "--out", out},
             {"export", name, "--format", "safetensors", "--out", out},
             {"import", "vmoe", name, "--out", out},
             {"data", "verify", name},
             {"data", "pack", name, "--out", out},
             {"reproduce", name}}) {
      expect_one_line_error(run_program(command), 2, fs::path(name).filename().string());
    }
  }
}

TEST_F(Newcomer, ErrorsNameTheArgument) {
  const std::string recipe =
      (fs::path(MOESAIC_TEST_SOURCE_DIR) / "models/clusters/recipes/smoke.json").string();
  expect_one_line_error(run_program({"train", recipe, "model=null", "init="}), 2,
                        "argument 'init=");
  expect_one_line_error(
      run_program({"reproduce", "clusters/table1", "probes=[]", "--out", text_path("out")}), 2,
      "argument 'probes=[]': no row has the metric");
  for (const char* device : {"tpu", "gpu"}) {
    expect_one_line_error(
        run_program({"train", recipe, "--device", device, "--dry-run"}), 2,
        device == std::string("gpu") ? "did you mean 'cuda'?" : "choose one of cpu, cuda");
  }
}

TEST_F(Newcomer, IdleThreadsSpinBrieflyUnlessTheUserChose) {
  const auto spin_count = [&](const std::string& setting) {
    fs::remove_all(path("run"));
    const ProgramResult result = run_command(
        {"sh", "-c",
         "env -u GOMP_SPINCOUNT -u OMP_WAIT_POLICY " + setting +
             R"( "$0" train "$1" phases.train.steps=100000000 --out "$2" 2>/dev/null & run=$!
             while ! [ -e "$2/metrics.jsonl" ] && kill -0 $run; do sleep 0.1; done
             tr '\0' '\n' </proc/$run/environ | sed -n 's/^GOMP_SPINCOUNT=//p'
             kill -9 $run)",
         MOESAIC_PROGRAM,
         (fs::path(MOESAIC_TEST_SOURCE_DIR) / "models/clusters/recipes/smoke.json").string(),
         text_path("run")});
    return result.out;
  };
  EXPECT_THAT(spin_count(""), ::testing::AnyOf("20000\n", "0\n"));  // 0 on a busy machine.
  EXPECT_EQ(spin_count("GOMP_SPINCOUNT=7"), "7\n");
  EXPECT_EQ(spin_count("OMP_WAIT_POLICY=active"), "");
}

}  // namespace
}  // namespace moesaic::testing
