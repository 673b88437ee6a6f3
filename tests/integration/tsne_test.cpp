// SPDX-License-Identifier: Apache-2.0
// Images of an evaluation, from a run of generated data.

#include "integration/program.h"
#include "moesaic/base/file.h"
#include "moesaic/base/process.h"
#include "support/matchers.h"

namespace moesaic::testing {
namespace {

namespace fs = std::filesystem;

class EvalFigure : public ProgramTest {
 protected:
  std::string trained() const {
    must_succeed({"train", recipe("clusters/recipes/figure1-cubic.json"), "phases.0.steps=3",
                  "--out", text_path("run")});
    return text_path("run");
  }
};

TEST_F(EvalFigure, IsDrawnBesideWhatEvalPrints) {
  const std::string run = trained();
  const auto plain = run_program({"eval", run, "--json"});
  const auto drawn =
      must_succeed({"eval", run, "--json", "--tsne", text_path("a.svg"), "--tsne-of", "inputs",
                    "--tsne-points", "60", "--tsne-color", "group", "--tsne-boundary"});
  EXPECT_THAT(drawn.err, HasSubstr("60 points, coloured by group"));
  auto wanted = plain.json(), found = drawn.json();
  for (auto* report : {&wanted, &found}) report->erase("images_per_second");
  EXPECT_EQ(found, wanted);
  EXPECT_THAT(read_text(path("a.svg")), HasSubstr("cluster 4"));
  EXPECT_TRUE(fs::exists(path("a.gp")) && fs::exists(path("a.tsv")));
  expect_usage_error({"eval", run, "--tsne", text_path("a.svg")}, "a.svg");
}

/// Runs the program in a mount namespace, with a file system of 24 KB at `folder`.
TEST_F(EvalFigure, OnAFullDiskLeavesNothingAndFails) {
  const std::string run = trained();
  fs::create_directories(path("small"));
  const std::string mount =
      "mount -t tmpfs -o size=24k none " + shell_quoted(text_path("small")) + " && ";
  if (run_command({"unshare", "-rm", "sh", "-c", mount + "true"}).exit_code != 0) {
    GTEST_SKIP() << "needs unshare(1) and the right to mount a tmpfs";
  }
  const std::string eval = shell_quoted(MOESAIC_PROGRAM) + " eval " + shell_quoted(run) +
                           " --tsne " + shell_quoted(text_path("small/a.png")) +
                           " --tsne-points 100; code=$?; ls -A " +
                           shell_quoted(text_path("small")) + " >&2; exit $code";
  const auto result = run_command({"unshare", "-rm", "sh", "-c", mount + eval});
  EXPECT_EQ(result.exit_code, 1) << result.err;
  EXPECT_THAT(result.err, HasSubstr("small/a."));
  EXPECT_THAT(result.err, Not(HasSubstr(".part")));
  EXPECT_FALSE(result.err.ends_with("a.png\n")) << result.err;
}

TEST_F(EvalFigure, WhatIsWrongIsSaidBeforeAnythingIsPrintedOrWritten) {
  const std::string run = trained();
  const auto refuse = [&](Strings options, const std::string& text) {
    options.insert(options.begin(), {"eval", run});
    const auto result = run_program(options);
    expect_one_line_error(result, 2, text);
    EXPECT_EQ(result.out, "");
    EXPECT_FALSE(fs::exists(path("a.png")) || fs::exists(path("a.gp")));
  };
  const std::string file = text_path("a.png");
  refuse({"--tsne", text_path("a.gif")}, ".png or .svg");
  refuse({"--tsne", "/dev/full/a.png"}, "'/dev/full' is not a folder");
  refuse({"--tsne", text_path("none/a.png")}, "no such folder");
  const auto unwritable = run_program({"eval", run, "--tsne", "/proc/a.png"});
  EXPECT_EQ(unwritable.exit_code, 1);
  EXPECT_EQ(unwritable.out, "");
  EXPECT_THAT(unwritable.err, HasSubstr("/proc: cannot write here"));
  for (const char* option : {"--tsne a.png", "--confusion a.csv"}) {
    const auto here = run_command({"sh", "-c",
                                   "cd /proc && " + std::string(MOESAIC_PROGRAM) + " eval " +
                                       shell_quoted(run) + " " + option});
    EXPECT_EQ(here.exit_code, 1);
    EXPECT_EQ(here.out, "");
    EXPECT_THAT(here.err, HasSubstr("/proc: cannot write here"));
  }
  refuse({"--tsne", file, "--tsne-points", "9"}, "between 10 and 10000");
  refuse({"--tsne", file, "--tsne-points", "10001"}, "between 10 and 10000");
  refuse({"--tsne", file, "--tsne-of", "logits"}, "--tsne-of");
  refuse({"--tsne-boundary"}, "--tsne");
  const auto late = run_program({"eval", run, "--tsne", file, "--tsne-class", "+2"});
  EXPECT_EQ(late.exit_code, 2);
  EXPECT_EQ(late.out, "");
  EXPECT_THAT(late.err, HasSubstr("has no class '+2'"));
  EXPECT_FALSE(fs::exists(path("a.gp")));
}

}  // namespace
}  // namespace moesaic::testing
