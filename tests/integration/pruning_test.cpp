// SPDX-License-Identifier: Apache-2.0
// What `moesaic prune` offers, and the pruning paper's theory, as a user runs them.

#include "integration/program.h"
#include "moesaic/base/file.h"
#include "support/matchers.h"

namespace moesaic::testing {
namespace {

class PruningProgram : public ProgramTest {
 protected:
  static std::string checkpoint(const char* phase) {
    return (smoke_run() / "checkpoints" / phase).string();
  }

  ProgramResult prune(const std::vector<std::string>& more) const {
    std::vector<std::string> arguments = {"prune", "--finetuned", checkpoint("finetune"),
                                          "--pretrained", checkpoint("pretrain")};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run_program(arguments);
  }
};

TEST_F(PruningProgram, APlanIsShownEditedAndApplied) {
  const auto planned = prune({"--keep", "0.5", "--dry-run", "--json"});
  ASSERT_EQ(planned.exit_code, 0) << planned.err;
  nlohmann::json plan = planned.json();
  ASSERT_EQ(plan.at("layers").at(0).at("kept").size(), 4U);
  plan["layers"][0]["kept"] = {0, 2, 5};
  write("plan.json", plan.dump());
  const auto made = run_program({"prune", "--finetuned", checkpoint("finetune"), "--plan",
                                 text_path("plan.json"), "--out", text_path("out")});
  ASSERT_EQ(made.exit_code, 0) << made.err;
  EXPECT_THAT(made.out, HasSubstr("0 2 5"));
  plan["layers"][0]["kept"] = {0, 9};
  write("plan.json", plan.dump());
  expect_one_line_error(run_program({"prune", "--finetuned", checkpoint("finetune"), "--plan",
                                     text_path("plan.json"), "--out", text_path("other")}),
                        2, "'kept' must be ascending experts below 8");
  EXPECT_FALSE(std::filesystem::exists(path("other")));
}

TEST_F(PruningProgram, ARunIsEnough) {
  const auto made =
      run_program({"prune", smoke_run().string(), "--keep", "0.25", "--out", text_path("small")});
  ASSERT_EQ(made.exit_code, 0) << made.err;
  EXPECT_THAT(made.err, AllOf(HasSubstr("compares with " + checkpoint("pretrain")),
                              HasSubstr("wrote " + text_path("small")),
                              HasSubstr("eval " + text_path("small")), HasSubstr("\"init\": ")));
  expect_one_line_error(
      run_program({"prune", checkpoint("pretrain"), "--keep", "0.5", "--dry-run"}), 2,
      "or a criterion that looks at this network alone, such as --criterion router-magnitude");
}

TEST_F(PruningProgram, CriteriaWithImagesAndMeanReplacement) {
  const auto made = prune({"--criterion", "reap", "--keep", "3", "--replace", "mean", "--images",
                           "200", "--out", text_path("small")});
  ASSERT_EQ(made.exit_code, 0) << made.err;
  EXPECT_THAT(made.err, HasSubstr("calibrating by train images"));
  const auto evaluated = run_program({"eval", text_path("small"), "--json"});
  ASSERT_EQ(evaluated.exit_code, 0) << evaluated.err;
  for (const char* format : {"torchscript", "safetensors"}) {
    const std::string file = text_path(std::string("net.") + format);
    ASSERT_EQ(
        run_program({"export", text_path("small"), "--format", format, "--out", file}).exit_code,
        0);
    const auto again = run_program({"eval", file, "--json", "--data", "fashion-mnist-footwear"});
    ASSERT_EQ(again.exit_code, 0) << again.err;
    EXPECT_EQ(again.json().at("accuracy"), evaluated.json().at("accuracy"));
  }
  expect_one_line_error(
      run_program({"export", text_path("small"), "--format", "vmoe", "--out", text_path("v")}), 2,
      "choose safetensors");
}

TEST_F(PruningProgram, SearchesWithinADropAndRefusesTheTestSplit) {
  const auto found = prune(
      {"--max-drop", "0.05", "--figure", text_path("curve.png"), "--out", text_path("small")});
  ASSERT_EQ(found.exit_code, 0) << found.err;
  EXPECT_THAT(found.out, AllOf(HasSubstr("bisection"), HasSubstr("chosen")));
  EXPECT_TRUE(std::filesystem::exists(path("curve.png")));
  EXPECT_THAT(found.err, AllOf(HasSubstr("warning: prune: "),
                               HasSubstr(" has no validation split, so accuracy is measured on "
                                         "training images, ")));
  expect_one_line_error(prune({"--max-drop", "0.05", "--split", "test", "--dry-run"}), 2,
                        "test images must not select the network");
  expect_one_line_error(
      prune({"--max-drop", "0.05", "--search", "greedy", "--scope", "network", "--dry-run"}), 2,
      "leave --scope network out");
}

TEST_F(PruningProgram, ASearchThatASignalStopsSaysSoWithItsNumber) {
  const std::vector<std::string> search = {"prune",
                                           "--finetuned",
                                           checkpoint("finetune"),
                                           "--criterion",
                                           "random",
                                           "--max-drop",
                                           "0.9",
                                           "--search",
                                           "greedy",
                                           "--out",
                                           text_path("stopped")};
  // Nothing on disk tells that the search has begun; a signal that comes before it ends the
  // program without a word.
  ProgramResult result;
  for (int wait = 250; wait < 10'000; wait += wait / 2) {
    result = run_program(
        search,
        {.interrupt_after_ms = wait, .interrupt_when = checkpoint("finetune"), .signal = 15});
    if (result.err.find("accuracy is measured on training images") != std::string::npos) break;
  }
  EXPECT_EQ(result.exit_code, 143) << result.err;
  EXPECT_THAT(result.err, HasSubstr("stopped; nothing was written"));
  EXPECT_FALSE(std::filesystem::exists(path("stopped")));
}

TEST_F(PruningProgram, SaysInOneLineWhatDoesNotFit) {
  expect_one_line_error(prune({"--keep", "0.5", "--max-drop", "0.1", "--out", text_path("x")}), 2,
                        "several options give the number of experts to keep; give one of --keep");
  expect_one_line_error(prune({"--keep", "0.5"}), 2, "prune: --out is missing; name a new folder");
  expect_one_line_error(prune({"--keep", "1.5", "--dry-run"}), 2,
                        "--keep '1.5': a fraction must be above 0");
  expect_one_line_error(prune({"--keep", "0.5", "--exclude-blocks", "1", "--dry-run"}), 2,
                        "names every block");
  EXPECT_THAT(prune({"--keep", "0.5", "--whole", "1", "--dry-run"}).err,
              AllOf(HasSubstr("'--whole' is called '--exclude-blocks' now"),
                    HasSubstr("names every block")));
  expect_one_line_error(prune({"--keep-parameters", "0.1", "--dry-run"}), 2, "choose at least");
  expect_one_line_error(prune({"--keep", "0.5", "--criterion", "reep", "--dry-run"}), 2,
                        "--criterion: cannot be 'reep'; did you mean 'reap'?");
  for (const char* blocks : {"1,x", "-1", "1.5"}) {
    expect_one_line_error(prune({"--keep", "0.5", "--exclude-blocks", blocks, "--dry-run"}), 2,
                          "--exclude-blocks: must be a whole number between 0 and");
  }
  for (const char* drop : {"1", "x", "-0.1", "nan"}) {
    expect_one_line_error(
        prune({"--max-drop", drop, "--dry-run"}), 2,
        std::string("--max-drop: must be a number between 0 and 0.99, found '") + drop + "'");
  }
  for (const char* fraction : {"1.5", "half", "nan"}) {
    expect_one_line_error(
        prune({"--keep-parameters", fraction, "--dry-run"}), 2,
        std::string("--keep-parameters: must be a number between 0 and 1, found '") + fraction);
  }
}

TEST_F(PruningProgram, RefusesOptionsThatWouldChangeNothing) {
  const auto refuse = [&](std::vector<std::string> arguments, const std::string& option,
                          const std::string& user) {
    arguments.insert(arguments.end(), {"--out", text_path("x")});
    expect_one_line_error(prune(arguments), 2, option + " has no effect here");
    EXPECT_THAT(prune(arguments).err, HasSubstr(user));
    EXPECT_FALSE(std::filesystem::exists(path("x")));
  };
  const std::string data = "fashion-mnist-footwear";
  refuse({"--keep", "0.5", "--data", data}, "--data",
         "it is for --max-drop, --replace mean, --replace merge and");
  refuse({"--keep", "0.5", "--split", "train"}, "--split", "it is for --max-drop");
  refuse({"--keep", "0.5", "--images", "20"}, "--images",
         "it is for --replace mean, --replace merge and the");
  refuse({"--keep", "0.5", "--images", "1024"}, "--images",
         "criteria that need images: importance");
  refuse({"--keep-parameters", "0.9", "--search", "greedy"}, "--search", "it is for --max-drop");
  refuse({"--keep", "0.5", "--figure", text_path("f.png")}, "--figure", "it is for --max-drop");
  // A search evaluates all images of the split: only criteria and means look at a number of them.
  refuse({"--max-drop", "0.5", "--images", "20"}, "--images", "it is for --replace mean");
  EXPECT_THAT(run_program({"prune", "--help"}).out,
              HasSubstr("drawn at random by --seed (--max-drop"));
}

TEST_F(PruningProgram, APlanLeavesNothingToCriterionSeedAndPretrainedNetwork) {
  write("plan.json", prune({"--keep", "0.5", "--dry-run", "--json"}).out);
  const auto by_plan = [&](const std::vector<std::string>& more) {
    std::vector<std::string> arguments = {"prune",  "--finetuned",          checkpoint("finetune"),
                                          "--plan", text_path("plan.json"), "--dry-run"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run_program(arguments);
  };
  for (const auto& [option, value] :
       {std::pair<std::string, std::string>{"--criterion", "magnitude"},
        {"--pretrained", checkpoint("pretrain")},
        {"--seed", "3"}}) {
    expect_one_line_error(by_plan({option, value}), 2, option + " has no effect here");
  }
  EXPECT_EQ(by_plan({"--seed", "3", "--replace", "mean", "--images", "20"}).exit_code, 0);
  expect_one_line_error(prune({"--keep", "0.5", "--seed", "3", "--dry-run"}), 2,
                        "--seed has no effect here; it is for --criterion random");
  EXPECT_EQ(prune({"--keep", "4", "--criterion", "random", "--seed", "3", "--dry-run"}).exit_code,
            0);
  nlohmann::json plan = by_plan({"--json"}).json();
  plan["replace"] = "mean";
  plan["layers"][0]["layer"] = 7;
  write("plan.json", plan.dump());
  expect_one_line_error(by_plan({}), 2, text_path("plan.json") + ": block 7 has no experts");
}

TEST_F(PruningProgram, TakesOptionsForImagesWhereImagesAreLookedAt) {
  const std::vector<std::string> images = {
      "--data", "fashion-mnist-footwear", "--split", "train", "--images", "20", "--dry-run"};
  for (std::vector<std::string> arguments :
       std::vector<std::vector<std::string>>{{"--keep", "0.5", "--criterion", "load"},
                                             {"--keep", "0.5", "--replace", "mean"},
                                             {"--max-drop", "0.9", "--criterion", "gate-sum"}}) {
    arguments.insert(arguments.end(), images.begin(), images.end());
    const auto made = prune(arguments);
    EXPECT_EQ(made.exit_code, 0) << made.err;
    EXPECT_THAT(made.err, HasSubstr("calibrating by train images"));
  }
  // A plan says itself whether means replace removed experts.
  nlohmann::json plan = prune({"--keep", "0.5", "--dry-run", "--json"}).json();
  for (const char* replace : {"nothing", "mean"}) {
    plan["replace"] = replace;
    write("plan.json", plan.dump());
    const auto made = run_program({"prune", "--finetuned", checkpoint("finetune"), "--plan",
                                   text_path("plan.json"), "--dry-run", "--images", "20"});
    EXPECT_EQ(made.exit_code, replace == std::string("mean") ? 0 : 2) << made.err;
  }
}

TEST_F(PruningProgram, AnOverrideThatTheExperimentsRowsReplaceIsToldOf) {
  expect_one_line_error(run_program({"reproduce", "pruning/synthetic", "--dry-run",
                                     R"(set={"seed": 3})", "train.seed=2"}),
                        2, "argument 'train.seed=2': no effect");
  const auto some = run_program({"reproduce", "pruning/synthetic", "--dry-run",
                                 "train.phases.prune.on_entry.prune.keep=0.3"});
  EXPECT_EQ(some.exit_code, 0) << some.err;
  EXPECT_THAT(some.err, HasSubstr("4 of 5 rows set this themselves and keep theirs, the first is "
                                  "'pruned 50 %'"));
}

TEST_F(PruningProgram, ASweepIsPlannedWithoutItsDataAndSaysHowToGetThem) {
  const ProgramOptions nowhere{.environment = {"MOESAIC_DATA=" + text_path("none")}};
  std::vector<std::string> sweep = {"reproduce", "pruning/vmoe-cifar10", "--scale", "quick",
                                    "--out",     text_path("sweep")};
  expect_one_line_error(run_program(sweep, nowhere), 1, "run 'moesaic data fetch cifar10'");
  sweep.emplace_back("--dry-run");
  const auto planned = run_program(sweep, nowhere);
  ASSERT_EQ(planned.exit_code, 0) << planned.err;
  EXPECT_THAT(planned.err, HasSubstr("'cifar10-animals': its files are not here"));
  EXPECT_THAT(planned.out, AllOf(HasSubstr("networks "),
                                 HasSubstr("not counted: data whose files are missing")));
}

TEST_F(PruningProgram, CallsInputsOfOneRowRows) {
  const std::string recipe =
      std::string(MOESAIC_TEST_SOURCE_DIR) + "/models/pruning/recipes/synthetic.json";
  const auto trained = run_program({"train", recipe, "phases.finetune.steps=1",
                                    "phases.recover.steps=1", "--out", text_path("run")});
  ASSERT_EQ(trained.exit_code, 0) << trained.err;
  const auto made =
      run_program({"prune", "--finetuned", text_path("run/checkpoints/finetune"), "--criterion",
                   "load", "--keep", "0.5", "--images", "20", "--dry-run"});
  EXPECT_EQ(made.exit_code, 0) << made.err;
  EXPECT_THAT(made.err, HasSubstr(" rows of "));
  const auto evaluated = run_program({"eval", text_path("run")});
  EXPECT_THAT(evaluated.out,
              AllOf(HasSubstr(" test rows\n"), HasSubstr("rows/s "), HasSubstr("FLOPs/row ")));
}

TEST_F(PruningProgram, ReproducesTheTheoryAtQuickScale) {
  const auto made = run_program(
      {"reproduce", "pruning/synthetic", "--scale", "quick", "--out", text_path("theory")});
  ASSERT_EQ(made.exit_code, 0) << made.err;
  const auto results = nlohmann::json::parse(read_text(path("theory") / "results.json"));
  size_t seen = 0;
  for (const auto& row : results.at("rows")) {
    if (row.at("name") != "pruned 90 %") continue;
    const std::string metric = row.at("metric");
    seen += metric.starts_with("accuracy_") || metric == "separation" ? 1 : 0;
  }
  EXPECT_EQ(seen, 5U);
}

}  // namespace
}  // namespace moesaic::testing
