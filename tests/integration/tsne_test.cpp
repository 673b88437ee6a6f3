// SPDX-License-Identifier: Apache-2.0
// Images of an evaluation, from a run of generated data.
#include <gtest/gtest.h>

#include "integration/program.h"
#include "moesaic/base/file.h"

namespace moesaic::testing {
namespace {

namespace fs = std::filesystem;

class EvalFigure : public ProgramTest {
 protected:
  std::string trained() const {
    const auto result =
        run_program({"train", MOESAIC_TEST_SOURCE_DIR "/models/clusters/recipes/figure1-cubic.json",
                     "phases.0.steps=3", "--out", text_path("run")});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return text_path("run");
  }
};

TEST_F(EvalFigure, IsDrawnBesideWhatEvalPrints) {
  const std::string run = trained();
  const auto plain = run_program({"eval", run, "--json"});
  const auto drawn =
      run_program({"eval", run, "--json", "--tsne", text_path("a.svg"), "--tsne-of", "inputs",
                   "--tsne-points", "60", "--tsne-color", "group", "--tsne-boundary"});
  ASSERT_EQ(drawn.exit_code, 0) << drawn.err;
  EXPECT_NE(drawn.err.find("60 points, coloured by group"), std::string::npos) << drawn.err;
  auto wanted = plain.json(), found = drawn.json();
  for (auto* report : {&wanted, &found}) report->erase("images_per_second");
  EXPECT_EQ(found, wanted);
  EXPECT_NE(read_text(path("a.svg")).find("cluster 4"), std::string::npos);
  EXPECT_TRUE(fs::exists(path("a.gp")) && fs::exists(path("a.tsv")));
  expect_one_line_error(run_program({"eval", run, "--tsne", text_path("a.svg")}), 2, "a.svg");
}

TEST_F(EvalFigure, WhatIsWrongIsSaidBeforeAnythingIsPrintedOrWritten) {
  const std::string run = trained();
  const auto refuse = [&](std::vector<std::string> options, const std::string& text) {
    options.insert(options.begin(), {"eval", run});
    const auto result = run_program(options);
    expect_one_line_error(result, 2, text);
    EXPECT_EQ(result.out, "");
    EXPECT_FALSE(fs::exists(path("a.png")) || fs::exists(path("a.gp")));
  };
  const std::string file = text_path("a.png");
  refuse({"--tsne", text_path("a.gif")}, ".png or .svg");
  refuse({"--tsne", file, "--tsne-points", "9"}, "between 10 and 10000");
  refuse({"--tsne", file, "--tsne-points", "10001"}, "between 10 and 10000");
  refuse({"--tsne", file, "--tsne-of", "logits"}, "--tsne-of");
  refuse({"--tsne-boundary"}, "--tsne");
  const auto late = run_program({"eval", run, "--tsne", file, "--tsne-class", "+2"});
  EXPECT_EQ(late.exit_code, 2);
  EXPECT_EQ(late.out, "");
  EXPECT_NE(late.err.find("has no class '+2'"), std::string::npos) << late.err;
  EXPECT_FALSE(fs::exists(path("a.gp")));
}

}  // namespace
}  // namespace moesaic::testing
