// SPDX-License-Identifier: Apache-2.0
// What `moesaic prune` offers, and the pruning paper's theory, as a user runs them.

#include "integration/program.h"
#include "support/matchers.h"

namespace moesaic::testing {
namespace {

class PruningProgram : public ProgramTest {
 protected:
  static std::string checkpoint(const char* phase) {
    return (smoke_run() / "checkpoints" / phase).string();
  }

  ProgramResult prune(const Strings& more) const {
    return run_program(joined(
        {"prune", "--finetuned", checkpoint("finetune"), "--pretrained", checkpoint("pretrain")},
        more));
  }
  void refuse(const Strings& options, const std::string& text) const {
    expect_one_line_error(prune(options), 2, text);
  }
  /// Prunes by plan.json.
  ProgramResult by_plan(const Strings& more) const {
    return run_program(joined(
        {"prune", "--finetuned", checkpoint("finetune"), "--plan", text_path("plan.json")}, more));
  }
};

TEST_F(PruningProgram, APlanIsShownEditedAndApplied) {
  NEEDS_FASHION_MNIST();
  nlohmann::json plan = must_succeed(prune({"--keep", "0.5", "--dry-run", "--json"})).json();
  ASSERT_EQ(plan.at("layers").at(0).at("kept").size(), 4U);
  plan["layers"][0]["kept"] = {0, 2, 5};
  write("plan.json", plan.dump());
  EXPECT_THAT(must_succeed(by_plan({"--out", text_path("out")})).out, HasSubstr("0 2 5"));
  plan["layers"][0]["kept"] = {0, 9};
  write("plan.json", plan.dump());
  expect_one_line_error(by_plan({"--out", text_path("other")}), 2,
                        "'kept' must be ascending experts below 8");
  EXPECT_FALSE(std::filesystem::exists(path("other")));
}

TEST_F(PruningProgram, ARunIsEnough) {
  NEEDS_FASHION_MNIST();
  const auto made =
      must_succeed({"prune", smoke_run().string(), "--keep", "0.25", "--out", text_path("small")});
  EXPECT_THAT(made.err, AllOf(HasSubstr("compares with " + checkpoint("pretrain")),
                              HasSubstr("wrote " + text_path("small")),
                              HasSubstr("eval " + text_path("small")), HasSubstr("\"init\": ")));
  expect_usage_error(
      {"prune", checkpoint("pretrain"), "--keep", "0.5", "--dry-run"},
      "or a criterion that looks at this network alone, such as --criterion router-magnitude");
}

TEST_F(PruningProgram, CriteriaWithImagesAndMeanReplacement) {
  NEEDS_FASHION_MNIST();
  const auto made = must_succeed(prune({"--criterion", "reap", "--keep", "3", "--replace", "mean",
                                        "--images", "200", "--out", text_path("small")}));
  EXPECT_THAT(made.err, HasSubstr("calibrating by train images"));
  const auto evaluated = must_succeed({"eval", text_path("small"), "--json"});
  for (const char* format : {"torchscript", "safetensors"}) {
    const std::string file = text_path(std::string("net.") + format);
    must_succeed({"export", text_path("small"), "--format", format, "--out", file});
    const auto again = must_succeed({"eval", file, "--json", "--data", "fashion-mnist-footwear"});
    EXPECT_EQ(again.json().at("accuracy"), evaluated.json().at("accuracy"));
  }
  expect_usage_error({"export", text_path("small"), "--format", "vmoe", "--out", text_path("v")},
                     "choose safetensors");
}

TEST_F(PruningProgram, SearchesWithinADropAndRefusesTheTestSplit) {
  NEEDS_FASHION_MNIST();
  const auto found = must_succeed(prune(
      {"--max-drop", "0.05", "--figure", text_path("curve.png"), "--out", text_path("small")}));
  EXPECT_THAT(found.out, AllOf(HasSubstr("bisection"), HasSubstr("chosen")));
  EXPECT_TRUE(std::filesystem::exists(path("curve.png")));
  EXPECT_THAT(found.err, AllOf(HasSubstr("warning: prune: "),
                               HasSubstr(" has no validation split, so accuracy is measured on "
                                         "training images, ")));
  refuse({"--max-drop", "0.05", "--split", "test", "--dry-run"},
         "test images must not select the network");
  refuse({"--max-drop", "0.05", "--search", "greedy", "--scope", "network", "--dry-run"},
         "leave --scope network out");
}

TEST_F(PruningProgram, ASearchThatASignalStopsSaysSoWithItsNumber) {
  NEEDS_FASHION_MNIST();
  const Strings search =
      joined({"prune", "--finetuned", checkpoint("finetune"), "--criterion", "random"},
             {"--max-drop", "0.9", "--search", "greedy", "--out", text_path("stopped")});
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
  EXPECT_THAT(result.err, HasSubstr("stopped; no result was written"));
  EXPECT_FALSE(std::filesystem::exists(path("stopped")));
}

TEST_F(PruningProgram, SaysInOneLineWhatDoesNotFit) {
  NEEDS_FASHION_MNIST();
  refuse({"--keep", "0.5", "--max-drop", "0.1", "--out", text_path("x")},
         "several options give the number of experts to keep; give one of --keep");
  refuse({"--keep", "0.5"}, "prune: --out is missing; name a new folder");
  refuse({"--keep", "1.5", "--dry-run"}, "--keep '1.5': a fraction must be above 0");
  refuse({"--keep", "0.5", "--exclude-blocks", "1", "--dry-run"}, "names every block");
  EXPECT_THAT(prune({"--keep", "0.5", "--whole", "1", "--dry-run"}).err,
              AllOf(HasSubstr("'--whole' is called '--exclude-blocks' now"),
                    HasSubstr("names every block")));
  refuse({"--keep-parameters", "0.1", "--dry-run"}, "choose at least");
  refuse({"--keep", "0.5", "--criterion", "reep", "--dry-run"},
         "--criterion: cannot be 'reep'; did you mean 'reap'?");
  for (const char* blocks : {"1,x", "-1", "1.5"}) {
    refuse({"--keep", "0.5", "--exclude-blocks", blocks, "--dry-run"},
           "--exclude-blocks: must be a whole number between 0 and");
  }
  for (const std::string drop : {"1", "x", "-0.1", "nan"}) {
    refuse({"--max-drop", drop, "--dry-run"},
           "--max-drop: must be a number between 0 and 0.99, found '" + drop + "'");
  }
  for (const std::string fraction : {"1.5", "half", "nan"}) {
    refuse({"--keep-parameters", fraction, "--dry-run"},
           "--keep-parameters: must be a number between 0 and 1, found '" + fraction);
  }
}

TEST_F(PruningProgram, RefusesOptionsThatWouldChangeNothing) {
  NEEDS_FASHION_MNIST();
  const auto refuse = [&](const Strings& options, const std::string& option,
                          const std::string& user) {
    const auto refused = prune(joined(options, {"--out", text_path("x")}));
    expect_one_line_error(refused, 2, option + " has no effect here");
    EXPECT_THAT(refused.err, HasSubstr(user));
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
  NEEDS_FASHION_MNIST();
  write("plan.json", prune({"--keep", "0.5", "--dry-run", "--json"}).out);

  for (const auto& [option, value] :
       {std::pair<std::string, std::string>{"--criterion", "magnitude"},
        {"--pretrained", checkpoint("pretrain")},
        {"--seed", "3"}}) {
    expect_one_line_error(by_plan({"--dry-run", option, value}), 2, option + " has no effect here");
  }
  must_succeed(by_plan({"--dry-run", "--seed", "3", "--replace", "mean", "--images", "20"}));
  refuse({"--keep", "0.5", "--seed", "3", "--dry-run"},
         "--seed has no effect here; it is for --criterion random");
  must_succeed(prune({"--keep", "4", "--criterion", "random", "--seed", "3", "--dry-run"}));
  nlohmann::json plan = by_plan({"--dry-run", "--json"}).json();
  plan["replace"] = "mean";
  plan["layers"][0]["layer"] = 7;
  write("plan.json", plan.dump());
  expect_one_line_error(by_plan({"--dry-run"}), 2,
                        text_path("plan.json") + ": block 7 has no experts");
}

TEST_F(PruningProgram, TakesOptionsForImagesWhereImagesAreLookedAt) {
  NEEDS_FASHION_MNIST();
  const Strings images = {
      "--data", "fashion-mnist-footwear", "--split", "train", "--images", "20", "--dry-run"};
  for (const Strings& options : {Strings{"--keep", "0.5", "--criterion", "load"},
                                 {"--keep", "0.5", "--replace", "mean"},
                                 {"--max-drop", "0.9", "--criterion", "gate-sum"}}) {
    EXPECT_THAT(must_succeed(prune(joined(options, images))).err,
                HasSubstr("calibrating by train images"));
  }
  // A plan says itself whether means replace removed experts.
  nlohmann::json plan = prune({"--keep", "0.5", "--dry-run", "--json"}).json();
  for (const std::string replace : {"nothing", "mean"}) {
    plan["replace"] = replace;
    write("plan.json", plan.dump());
    const auto made = by_plan({"--dry-run", "--images", "20"});
    EXPECT_EQ(made.exit_code, replace == "mean" ? 0 : 2) << made.err;
  }
}

TEST_F(PruningProgram, AnOverrideThatTheExperimentsRowsReplaceIsToldOf) {
  expect_usage_error(
      {"reproduce", "pruning/synthetic", "--dry-run", R"(set={"seed": 3})", "train.seed=2"},
      "argument 'train.seed=2': no effect");
  const auto some = must_succeed({"reproduce", "pruning/synthetic", "--dry-run",
                                  "train.phases.prune.on_entry.prune.keep=0.3"});
  EXPECT_THAT(some.err, HasSubstr("4 of 5 rows set this themselves and keep theirs, the first is "
                                  "'pruned 50 %'"));
}

TEST_F(PruningProgram, ASweepIsPlannedWithoutItsDataAndSaysHowToGetThem) {
  const ProgramOptions nowhere{.environment = {"MOESAIC_DATA=" + text_path("none")}};
  Strings sweep = {"reproduce", "pruning/vmoe-cifar10", "--scale", "quick",
                   "--out",     text_path("sweep")};
  expect_one_line_error(run_program(sweep, nowhere), 1, "run 'moesaic data fetch cifar10'");
  sweep.emplace_back("--dry-run");
  const auto planned = must_succeed(sweep, nowhere);
  EXPECT_THAT(planned.err, HasSubstr("'cifar10-animals': its files are not here"));
  EXPECT_THAT(planned.out, AllOf(HasSubstr("networks "),
                                 HasSubstr("not counted: data whose files are missing")));
}

TEST_F(PruningProgram, CallsInputsOfOneRowRows) {
  must_succeed({"train", recipe("pruning/recipes/synthetic.json"), "phases.finetune.steps=1",
                "phases.recover.steps=1", "--out", text_path("run")});
  const auto made =
      must_succeed({"prune", "--finetuned", text_path("run/checkpoints/finetune"), "--criterion",
                    "load", "--keep", "0.5", "--images", "20", "--dry-run"});
  EXPECT_THAT(made.err, HasSubstr(" rows of "));
  const auto evaluated = run_program({"eval", text_path("run")});
  EXPECT_THAT(evaluated.out,
              AllOf(HasSubstr(" test rows\n"), HasSubstr("rows/s "), HasSubstr("FLOPs/row ")));
}

TEST_F(PruningProgram, ReproducesTheTheoryAtQuickScale) {
  size_t seen = 0;
  for (const auto& row : quick_rows("pruning/synthetic")) {
    if (row.at("name") != "pruned 90 %") continue;
    const std::string metric = row.at("metric");
    seen += metric.starts_with("accuracy_") || metric == "separation" ? 1 : 0;
  }
  EXPECT_EQ(seen, 5U);
}

}  // namespace
}  // namespace moesaic::testing
