// SPDX-License-Identifier: Apache-2.0
#include "moesaic/report/experiment.h"

#include "moesaic/base/file.h"
#include "moesaic/base/process.h"
#include "moesaic/config/document.h"
#include "report/report_fixture.h"
#include "report/runs_fixture.h"
#include "support/matchers.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;
using report_test::error_of;

Reproduction run_tiny(const fs::path& out) {
  Experiment experiment{.name = "tiny", .kind = "runs", .description = "Two quarters."};
  experiment.config = Document::from_text(report_test::tiny_sweep(), "tiny.json").root();
  return reproduce(experiment,
                   {.out = out, .show_progress = false, .open = report_test::open_tiny});
}

TEST(Reproduce, AMissingGnuplotIsFoundBeforeTraining) {
  const report_test::TempDir folder;
  const test::ScopedEnv path("PATH", folder.path().string());
  EXPECT_THAT(error_of([&] { run_tiny(folder / "out"); }), HasSubstr("failure: gnuplot: "));
  EXPECT_FALSE(fs::exists(folder / "out"));
}

TEST(Reproduce, AnUnknownKindGetsTheNearestOne) {
  Experiment experiment{.name = "tiny", .kind = "rans", .description = ""};
  experiment.config = Document::from_text(R"({"kind": "rans"})", "tiny.json").root();
  EXPECT_EQ(error_of([&] { reproduce(experiment, {}); }),
            "usage: tiny.json:1:10: unknown kind of experiment 'rans'; did you mean 'runs'?");
}

TEST(Reproduce, OfRunsLeavesResultsAReportAndAFigureAPlot) {
  if (find_program("gnuplot").empty()) GTEST_SKIP() << "needs gnuplot";
  const report_test::TempDir folder;
  const std::string text = report_test::runs_text(R"("rows": [{"name": "a", "num_runs": 1}],
      "snapshots": {"every": 2, "probes": ["entropy"]}, "paper": {"a": {"test_accuracy": [1, 2]}},
      "plots": [{"kind": "points", "metrics": ["test_accuracy"]},
                {"kind": "curves", "metrics": ["entropy"]}])");
  Experiment experiment{.name = "small", .kind = "runs", .description = "A test."};
  experiment.config = Document::from_text(text, "small.json").root();
  const ReproduceOptions options{.out = folder / "out", .show_progress = false};
  const Reproduction paper = reproduce(experiment, options);
  EXPECT_EQ(paper.results.find("a", "test_accuracy")->verdict(), "outside");
  for (const char* name : {"results.json", "report.md", "runs.json", "figure.svg", "figure.png",
                           "figure-2.svg", "figure-2.gp", "figure-2.tsv"}) {
    EXPECT_TRUE(fs::exists(folder / "out" / name)) << name;
  }
  experiment.scale = Scale::quick;
  const Reproduction quick = reproduce(experiment, options);
  EXPECT_EQ(quick.results.find("a", "test_accuracy")->verdict(), "") << "sizes differ";
  EXPECT_FALSE(quick.results.find("a", "test_accuracy")->paper.value);
}

TEST(Reproduce, LeavesAFolderOfSomeoneElseAlone) {
  const report_test::TempDir folder;
  fs::create_directories(folder / "out");
  test::put(folder / "out/notes.txt", "mine");
  EXPECT_THAT(error_of([&] { run_tiny(folder / "out"); }), HasSubstr("usage: "));
  EXPECT_EQ(std::distance(fs::directory_iterator(folder / "out"), fs::directory_iterator()), 1);
}

TEST(Reproduce, ADamagedTimeDoesNotBlockAnExperiment) {
  for (const char* text : {"", "{", "[]", "{\"seconds\": \"many\"}", "{\"seconds\": -1}"}) {
    const report_test::TempDir folder;
    fs::create_directories(folder / "out");
    test::put(folder / "out/elapsed.json", text);
    test::put(folder / "out/config.json", "{\"other\": 1}");
    EXPECT_THAT(error_of([&] { run_tiny(folder / "out"); }),
                HasSubstr("was made with other settings"))
        << text;
    EXPECT_EQ(read_text(folder / "out/config.json"), "{\"other\": 1}") << text;
  }
}

}  // namespace
}  // namespace moesaic
