// SPDX-License-Identifier: Apache-2.0
// What someone types who has not read the pages: one line that says what to type instead.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <regex>
#include <sstream>

#include "data/png_bytes.h"
#include "integration/program.h"
#include "support/help_texts.h"
#include "support/matchers.h"

namespace moesaic::testing {
namespace {

namespace fs = std::filesystem;

class Newcomer : public ProgramTest {};

TEST_F(Newcomer, WhatIsNoRecipe) {
  expect_usage_error({"train", "smoke"}, "models/vmoe/recipes/smoke.json");
  expect_usage_error({"train", "no-such-thing-at-all"}, "moesaic list recipes");
  fs::create_directories(path("images/train"));
  expect_usage_error({"train", text_path("images")}, "phases.0.data=" + text_path("images"));
  fs::create_directories(path("old/checkpoints"));
  write("old/config.json", "{}");
  expect_usage_error({"train", text_path("old")}, "/old/config.json --out ");
  write("README.md", "no tensors, only words");
  const auto words = run_program({"inspect", text_path("README.md")});
  expect_one_line_error(
      words, 2, "README.md: not a safetensors file, nor another kind that is read here: a run, a ");
  for (const char* inner : {"bytes long", "at byte"}) {
    EXPECT_THAT(words.err, Not(HasSubstr(inner)));
  }
}

TEST_F(Newcomer, SuggestionsAreOfWhatTheVerbTakes) {
  for (const char* folder : {"smoke", "sub", "rn1"}) fs::create_directories(path(folder));
  write("sub/base.json", "{}");
  write("sub/mine.json", R"({"extends": "bsae.json"})");
  const auto misspelt = run_program({"train", text_path("smke")});
  expect_one_line_error(misspelt, 2, "models/vmoe/recipes/smoke.json");
  EXPECT_THAT(misspelt.err, Not(HasSubstr("did you mean '" + text_path("smoke"))));
  expect_usage_error({"train", text_path("sub/mine.json")},
                     "no such file; did you mean 'base.json'?");
  EXPECT_THAT(run_program({"eval", text_path("rn")}).err, Not(HasSubstr("did you mean")));
  fs::create_directories(path("rn1/checkpoints/step_1"));
  expect_usage_error({"eval", text_path("rn")}, "did you mean '" + text_path("rn1") + "'?");
  expect_one_line_error(run_here("bench rn"), 2,
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
  ProgramResult train(const Strings& more) const {
    return run_program(joined({"train", text_path("mine.json")}, more));
  }
};

TEST_F(NewcomersImages, BecomeAsLargeAsTheNetworkTakesThem) {
  must_succeed(train({"--dry-run"}));
  const auto trained = must_succeed(train({"--out", text_path("run")}));
  EXPECT_THAT(trained.err, AllOf(HasSubstr("\nbest: "), HasSubstr(text_path("run") + "/best\n")));
  must_succeed({"eval", text_path("run")});
  const auto held = run_program({"inspect", text_path("run")});
  for (const char* line : {"\n  network    vmoe, image_size 16, channels 3, patch_size 8",
                           "\n  encoder: num_layers 2, num_heads 2", "\n  encoder.moe: layers [1]",
                           "\n  encoder.moe.router: name \"NoisyTopExpertsPerItemRouter\"",
                           "\n  encoder.moe.router.dispatcher: capacity 0, capacity_factor 0.0",
                           "\n  state      step 6, phase \"train\""}) {
    EXPECT_THAT(held.out, HasSubstr(line));
  }
  expect_usage_error({"eval", text_path("rn")}, "did you mean '" + text_path("run") + "'?");
  expect_one_line_error(train({"phases.0.steps=8", "--resume", "--out", text_path("run")}), 2,
                        ", where init=" + text_path("run") + " trains its network on");
  expect_usage_error({"predict", text_path("images/val/a/0.png"), text_path("run")},
                     "the checkpoint comes first, then the images: ");
  for (const char* size : {"model.image_size=32", "model.image_size=[16,32]"}) {
    must_succeed(train({size, "--dry-run"}));
  }
}

TEST_F(NewcomersImages, AFolderWithoutImagesIsNoReasonForAnotherOutput) {
  fs::create_directories(path("images/train/c"));
  const auto refused = train({"--dry-run"});
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.err,
              HasSubstr("has 3 classes, the model has 2; 1 of the classes has no images "
                        "('c'): remove it if that is a mistake; set "));
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
  for (const char* setting : {"phases.train.optimizer.lr=0.1", "model.encoder.moe.num_experts=8",
                              "phases.0.optimizer.name=sgd"}) {
    must_succeed(train({setting, "--dry-run"}));
  }
  const auto idle = must_succeed(
      train({"phases.0.trainable=[\"head\"]", "phases.0.frozen=[\"embedding\"]", "--dry-run"}));
  EXPECT_THAT(idle.err,
              HasSubstr("warning: phase 'train': 'embedding' in frozen has no effect: trainable "
                        "selects none of its parameters"));
  expect_one_line_error(train({"--seed", "3"}), 2,
                        "unknown option '--seed'; settings of a recipe have no dashes: seed=VALUE");
  const auto missing = must_succeed(train({"init=runs/nope", "--dry-run"}));
  EXPECT_THAT(missing.err, HasSubstr("warning: init: 'runs/nope' is not there"));
  const auto no_run = train({"init=" + text_path("images"), "--dry-run"});
  EXPECT_NE(no_run.exit_code, 0);
  EXPECT_THAT(no_run.err, AllOf(StartsWith("error: "), HasSubstr("images: neither a checkpoint")));
}

/// Returns the texts of the positionals and options in help: what its right column says of each.
Strings option_texts(const std::string& help) {
  constexpr size_t kColumn = 30;
  Strings texts;
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
  const std::vector<Strings> commands = {{},          {"train"},  {"eval"},      {"predict"},
                                         {"prune"},   {"export"}, {"inspect"},   {"data", "pack"},
                                         {"list"},    {"import"}, {"reproduce"}, {"bench"},
                                         {"compare"}, {"plot"},   {"doctor"}};
  for (Strings command : commands) {
    command.emplace_back("--help");
    const std::string text = run_program(command).out;
    EXPECT_FALSE(text.empty());
    EXPECT_THAT(text, Not(HasSubstr("... ...")));  // Several values, said twice.
    for (const std::string& meaning : option_texts(text)) {
      EXPECT_EQ(fault_of(meaning), "") << command.front() << ": " << meaning;
    }
  }
  const std::string prune = run_program({"prune", "--help"}).out;
  EXPECT_THAT(prune, HasSubstr("largest loss of accuracy on the validation split"));
  EXPECT_THAT(prune, HasSubstr("\n" + std::string(30, ' ') + "merge: the kept expert"));
  EXPECT_THAT(prune, HasSubstr("\n  checkpoint CHECKPOINT REQUIRED\n"));
  EXPECT_THAT(
      prune,
      HasSubstr("\n  --finetuned CHECKPOINT      another name of the positional checkpoint\n"));
  EXPECT_THAT(prune, HasSubstr("\n  --exclude-blocks BLOCKS ... blocks that"));
  EXPECT_THAT(prune, Not(HasSubstr("\n\n\n")));
  EXPECT_LT(prune.find("\n  --keep "), prune.find("\n  --criterion ")) << prune;
  expect_usage_error({"prune"},
                     "prune: checkpoint or --finetuned is required (see moesaic prune --help)");
}

/// Returns the names in the list of a help's subcommands, whose texts are checked: sentences that
/// fit.
Strings verbs_in(const std::string& help) {
  Strings names;
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
  Strings verbs = verbs_in(root);
  ASSERT_EQ(verbs.size(), 14U);
  EXPECT_EQ(verbs[0] + " " + verbs[1] + " " + verbs[2], "train eval predict");
  EXPECT_THAT(root, HasSubstr("\nExit codes: 0 done, 1 failed, 2 wrong use, "));
  EXPECT_THAT(root, HasSubstr("\nExample: moesaic train models/vmoe/recipes/smoke.json --out "));
  for (const std::string& name : verbs_in(run_program({"data", "--help"}).out)) {
    verbs.push_back("data " + name);
  }
  for (const std::string& verb : verbs) {
    Strings words = {verb};
    if (verb.starts_with("data ")) words = {"data", verb.substr(5)};
    words.emplace_back("--help");
    const std::string help = run_program(words).out;
    std::smatch example;
    ASSERT_TRUE(std::regex_search(help, example, std::regex("\nExample: moesaic (.*)\n"))) << help;
    const std::string call = example[1];
    EXPECT_TRUE((call + " ").starts_with(verb + " ")) << call;
    EXPECT_THAT(help, Not(HasSubstr("Exit codes")));
    const std::regex option(" (--[a-z-]+)");
    for (std::sregex_iterator it(call.begin(), call.end(), option), end; it != end; ++it) {
      EXPECT_THAT(help, HasSubstr("\n  " + (*it)[1].str() + " ")) << call;
    }
    words.pop_back();
    words.insert(words.begin(), "help");
    EXPECT_EQ(run_program(words).out, help);
  }
}

TEST_F(Newcomer, HelpAndListsSayWhatThingsAre) {
  const auto router = must_succeed({"train", "--help", "router"});
  for (const char* setting : {"model.encoder.moe.router.num_selected_experts",
                              "model.encoder.moe.router.dispatcher.capacity_factor"}) {
    EXPECT_THAT(router.out, HasSubstr(setting));
  }
  expect_usage_error({"help", "trian"}, "did you mean 'train'?");
  const std::string phases = run_program({"train", "--help", "phases"}).out;
  EXPECT_EQ(phases.find("phases.N.optimizer.lr "), phases.rfind("phases.N.optimizer.lr "));
  EXPECT_THAT(phases, HasSubstr("moesaic train --help kind NAME"));
  EXPECT_THAT(phases, HasSubstr("momentum of sgd: factor on the running sum of gradients"));
  const std::string patches = run_program({"train", "--help", "kind", "patch_sgd"}).out;
  EXPECT_THAT(patches, HasSubstr("phases.N.lr  "));
  EXPECT_THAT(patches, Not(HasSubstr("patch_sgd: ")));
  EXPECT_THAT(patches, Not(HasSubstr("phases.N.data")));
  expect_usage_error({"train", "--help", "kind", "patch_sdg"}, "did you mean 'patch_sgd'?");
  const std::string described = run_program({"data", "--help", "describe"}).out;
  for (const char* text : {"\nvalidation  number or null", "moesaic data --help format NAME"}) {
    EXPECT_THAT(described, HasSubstr(text));
  }
  EXPECT_THAT(run_program({"data", "--help", "describe", "mean"}).out,
              StartsWith("mean  list of number"));
  EXPECT_THAT(run_program({"data", "--help", "format", "image_folder"}).out,
              HasSubstr("num_classes  integer"));
  EXPECT_THAT(run_program({"data", "--help"}).out, HasSubstr("describe [KEY]"));
  const std::string datasets = run_program({"data", "list"}).out;
  EXPECT_THAT(datasets, HasSubstr("    10 classes  "));
  EXPECT_THAT(datasets, Not(HasSubstr(" 0 classes")));
  EXPECT_THAT(run_program({"data", "pack", "--help"}).out, HasSubstr("--shards"));
  expect_usage_error({"data", "--help", "describe", "validaton"}, "did you mean 'validation'?");
  const auto kinds = must_succeed({"list"});
  EXPECT_THAT(kinds.out, HasSubstr("criteria     rankings of experts for moesaic prune"));
  for (const auto& [kind, line] :
       {std::pair(
            "criteria",
            "mean of gate times norm of output over the expert's tokens, as in arXiv:2510.13999 "
            "(needs images)"),
        {"experiments", "Dispatch entropy over training"},
        {"phases", "steps of an optimizer on batches, by the gradients of a loss, for any network"},
        {"probes", "proficiency of routers: fraction of class-deciding patterns that they select"},
        {"recipes", "Pretraining, fine-tuning, pruning and recovery in seconds"}}) {
    const auto listed = must_succeed({"list", kind});
    EXPECT_THAT(listed.out, HasSubstr(line));
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
  EXPECT_THAT(text, HasSubstr("\nmodel vmoe\n\nmodel."));
}

TEST_F(Newcomer, AFileInPlaceOfAFolder) {
  expect_usage_error({"train", recipe("clusters/recipes/smoke.json"), "--out", "/dev/full/x"},
                     "--out: '/dev/full' is not a folder");
  expect_usage_error({"eval", "/dev/full/x"}, "'/dev/full' is not a folder");
  expect_usage_error({"reproduce", "clusters/table1", "--out", "/dev/full/x"},
                     "--out: '/dev/full' is not a folder");
}

TEST_F(Newcomer, AFileOfAnotherKindIsWrongUseInEveryVerb) {
  write("notes.txt", "no tensors, only words");
  for (const std::string& name : {std::string("/dev/null"), text_path("notes.txt")}) {
    const std::string out = text_path("out");
    for (const Strings& command :
         std::vector<Strings>{{"train", name},
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
      expect_usage_error(command, fs::path(name).filename().string());
    }
  }
}

TEST_F(Newcomer, ErrorsNameTheArgument) {
  const std::string clusters = recipe("clusters/recipes/smoke.json");
  expect_usage_error({"train", clusters, "model=null", "init="}, "argument 'init=");
  expect_usage_error({"reproduce", "clusters/table1", "probes=[]", "--out", text_path("out")},
                     "argument 'probes=[]': no row has the metric");
  for (const auto& [device, text] :
       {std::pair("tpu", "choose one of cpu, cuda"), {"gpu", "did you mean 'cuda'?"}}) {
    expect_usage_error({"train", clusters, "--device", device, "--dry-run"}, text);
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
         MOESAIC_PROGRAM, recipe("clusters/recipes/smoke.json"), text_path("run")});
    return result.out;
  };
  EXPECT_THAT(spin_count(""), ::testing::AnyOf("20000\n", "0\n"));  // 0 on a busy machine.
  EXPECT_EQ(spin_count("GOMP_SPINCOUNT=7"), "7\n");
  EXPECT_EQ(spin_count("OMP_WAIT_POLICY=active"), "");
}

}  // namespace
}  // namespace moesaic::testing
