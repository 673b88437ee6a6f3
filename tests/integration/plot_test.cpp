// SPDX-License-Identifier: Apache-2.0
// What a run tells those who watch it: plots, its report, a trace, and its metrics for a tracker.
#include "integration/program.h"
#include "moesaic/base/file.h"
#include "support/matchers.h"

namespace moesaic::testing {
namespace {

namespace fs = std::filesystem;

class Watching : public ProgramTest {
 protected:
  ProgramResult train(const std::string& name, const Strings& more = {}) {
    return run_program(joined({"train", recipe("clusters/recipes/figure1-cubic.json"),
                               "phases.0.steps=3", "log_every=1", "--out", text_path(name)},
                              more));
  }
};

TEST_F(Watching, RunsArePlottedTogetherAndExpertsOfOne) {
  for (const char* name : {"a", "b"}) must_succeed(train(name));
  const std::string a = text_path("a"), b = text_path("b"), none = text_path("none");
  must_succeed({"plot", a, b, "--out", text_path("both.svg")});
  EXPECT_THAT(read_text(path("both.svg")), HasSubstr("/b, training"));
  must_succeed({"plot", "--experts", a, "--out", text_path("load.png")});
  EXPECT_THAT(read_text(path("load.tsv")), StartsWith("# column\trow\tvalue\n"));
  must_succeed(
      {"plot", a, "--experts", "--metric", "router_norm", "--out", text_path("norms.svg")});
  EXPECT_THAT(read_text(path("norms.svg")), HasSubstr("norm of the router"));
  expect_usage_error({"plot", a, "--experts", "--metric", "loads"},
                     "--metric: cannot be 'loads'; did you mean 'load'?");
  expect_usage_error({"plot", a, b, "--experts", "--out", text_path("c.png")},
                     "--experts shows one run, found 2");
  expect_usage_error({"plot", none, "--out", text_path("c.png")}, none + ": no such folder");
  expect_usage_error({"plot", a, "--out", text_path("c.pdf")}, "must end in .png or .svg");
  EXPECT_THAT(read_text(path("a/report.md")), HasSubstr("## Next steps"));
}

TEST_F(Watching, StepsAreProfiled) {
  must_succeed(train("run", {"--profile", "2:1"}));
  EXPECT_THAT(read_text(path("run/trace.json")), HasSubstr("\"traceEvents\""));
  expect_one_line_error(train("other", {"--profile", "2"}), 2, "is not FROM:STEPS");
  EXPECT_FALSE(fs::exists(path("other")));
}

TEST_F(Watching, MetricsAreSentToATracker) {
  if (run_command({"python3", "--version"}).exit_code != 0) GTEST_SKIP() << "needs python3";
  // In place of the tracker, so that nothing is sent: before other modules on the path.
  write("wandb.py",
        "def init(**given): print('init', given['name'])\n"
        "def log(numbers, step): print(step, numbers['train/a/loss'])\n"
        "def finish(): print('finished')\n");
  fs::create_directories(path("run"));
  write("run/metrics.jsonl",
        "{\"kind\": \"train\", \"step\": 4, \"phase\": \"a\", \"loss\": 0.5, \"routing\": "
        "[]}\n{\"ki");
  const std::string script = MOESAIC_TEST_SOURCE_DIR "/examples/follow_metrics.py";
  const auto follow = [&](const std::string& run) {
    return run_command({"env", "PYTHONPATH=" + text_path(""), "python3", script, run, "--once"});
  };
  const auto sent = must_succeed(follow(text_path("run")));
  EXPECT_EQ(sent.out, "init run\n4 0.5\nfinished\n");
  const auto refused = follow(text_path("none"));
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.err, HasSubstr("no run, since it has no metrics.jsonl"));
}

}  // namespace
}  // namespace moesaic::testing
