// SPDX-License-Identifier: Apache-2.0
#include "moesaic/report/figure.h"

#include "support/matchers.h"
#include "train/train_fixture.h"

namespace moesaic {
namespace {

using namespace train_test;  // NOLINT(google-build-using-namespace): the fixture of this folder

TEST(RunReport, SaysWhatARunWasAndHowToGoOn) {
  const TempDir folder;
  const fs::path run = folder / "my run";
  train(run);
  const std::string text = run_report(run, "./moesaic");
  EXPECT_THAT(text, StartsWith("# tiny\n\n## Recipe\n\nNetwork vmoe, seed 5, float32;"));
  EXPECT_THAT(text,
              HasSubstr("| pretrain | gradient | three | 6 steps  |     4 |     adamw |  0.01 |"));
  EXPECT_THAT(text, HasSubstr("1 epochs"));
  // The last evaluation of each phase, as metrics.jsonl has it.
  Json last;
  for (const Json& line : metrics_lines(read_metrics(run))) {
    if (line["kind"] == "eval") last = line;
  }
  EXPECT_THAT(text, HasSubstr("| finetune | test "));
  EXPECT_THAT(text, HasSubstr(fmt::format("{:.5g}", last["loss"].get<double>())));
  const Json& layer = last["routing"][0];
  const double first = layer["load"][0].get<double>(), second = layer["load"][1].get<double>();
  EXPECT_THAT(
      text, HasSubstr(fmt::format("{}: {:.3g} %", layer["kept"][first > second ? 0 : 1].get<int>(),
                                  200.0 * std::max(first, second))));
  EXPECT_THAT(text, Not(HasSubstr("figure.svg")));
  EXPECT_THAT(text, HasSubstr("    ./moesaic eval '" + (run / "best").string() + "'\n"));
  EXPECT_THAT(text, HasSubstr("--experts --out experts.png\n"));
  EXPECT_THAT(text, HasSubstr("--max-drop 0.01 --criterion reap --out tiny-pruned\n"));
  EXPECT_THAT(text, EndsWith("--format pytorch --out tiny-exported\n"));
}

TEST(RunReport, NeedsNoEvaluationAndNoMixture) {
  const TempDir folder;
  write_atomic(folder / "config.json",
               R"({"name": "a|b", "phases": [{"name": "x", "epochs": 2}]})");
  write_atomic(folder / "metrics.jsonl", "{\"kind\": \"train\", \"step\": 3}\nhalf a li");
  write_atomic(folder / "figure.svg", "<svg/>");
  const std::string text = run_report(folder.path());
  EXPECT_THAT(text, StartsWith("# a/b\n"));
  EXPECT_THAT(text, HasSubstr("2 epochs"));
  EXPECT_THAT(text, HasSubstr("![loss and accuracy](figure.svg)"));
  for (const char* absent : {"## Results", "## Routing", "prune"}) {
    EXPECT_THAT(text, Not(HasSubstr(absent)));
  }
}

TEST(RunReport, RefusesAFolderThatIsNoRun) {
  const TempDir folder;
  EXPECT_THAT(error_of([&] { run_report(folder.path()); }), HasSubstr("no run, since it has no"));
  write_atomic(folder / "metrics.jsonl", "");
  EXPECT_THAT(error_of([&] { run_report(folder.path()); }),
              HasSubstr("no run, since its config.json is missing"));
}

}  // namespace
}  // namespace moesaic
