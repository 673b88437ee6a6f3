// SPDX-License-Identifier: Apache-2.0
// What `moesaic prune` offers, and the pruning paper's theory, as a user runs them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "integration/program.h"
#include "moesaic/base/file.h"

namespace moesaic::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

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

TEST_F(PruningProgram, CriteriaWithImagesAndMeansThatStandIn) {
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
      "has no place");
}

TEST_F(PruningProgram, SearchesWithinADropAndRefusesTheTestSplit) {
  const auto found = prune(
      {"--max-drop", "0.05", "--figure", text_path("curve.png"), "--out", text_path("small")});
  ASSERT_EQ(found.exit_code, 0) << found.err;
  EXPECT_THAT(found.out, AllOf(HasSubstr("bisection"), HasSubstr("chosen")));
  EXPECT_TRUE(std::filesystem::exists(path("curve.png")));
  expect_one_line_error(prune({"--max-drop", "0.05", "--split", "test", "--dry-run"}), 2,
                        "none left to be tested");
}

TEST_F(PruningProgram, SaysInOneLineWhatDoesNotFit) {
  expect_one_line_error(prune({"--keep", "0.5", "--max-drop", "0.1", "--out", text_path("x")}), 2,
                        "give one of --keep");
  expect_one_line_error(prune({"--keep", "0.5"}), 2, "give --out");
  expect_one_line_error(prune({"--keep", "0.5", "--whole", "1", "--dry-run"}), 2,
                        "every block stays whole");
  expect_one_line_error(prune({"--keep-parameters", "0.1", "--dry-run"}), 2, "choose at least");
  expect_one_line_error(prune({"--keep", "0.5", "--criterion", "reep", "--dry-run"}), 2, "'reap'");
}

TEST_F(PruningProgram, ReproducesTheTheoryAtQuickScale) {
  const auto made = run_program(
      {"reproduce", "pruning/synthetic", "--scale", "quick", "--out", text_path("theory")});
  ASSERT_EQ(made.exit_code, 0) << made.err;
  const auto results = nlohmann::json::parse(read_text(path("theory") / "results.json"));
  size_t seen = 0;
  for (const auto& row : results.at("rows")) {
    if (row.at("name") != "synthetic") continue;
    const std::string metric = row.at("metric");
    seen += metric.starts_with("accuracy_") || metric == "separation" ? 1 : 0;
  }
  EXPECT_EQ(seen, 5U);
}

}  // namespace
}  // namespace moesaic::testing
