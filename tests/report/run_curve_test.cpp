// SPDX-License-Identifier: Apache-2.0
#include "moesaic/report/figure.h"

#include "base/support.h"
#include "moesaic/base/error.h"
#include "moesaic/base/file.h"
#include "moesaic/base/process.h"
#include "support/matchers.h"

namespace moesaic {
namespace {

constexpr const char* kTwoPhases =
    R"({"kind": "train", "step": 5, "phase": "a", "loss": 2.5, "accuracy": 10}
{"kind": "prune", "step": 5}
{"kind": "eval", "step": 6, "phase": "a", "loss": 2, "accuracy": 20.5}
{"kind": "train", "step": 8, "phase": "b", "loss": 1.5, "accuracy": 30}
{"kind": "train", "step": 9, "pha)";

TEST(RunCurve, TakesTrainAndTestLinesApart) {
  const Figure figure = run_curve(kTwoPhases);
  EXPECT_EQ(figure.data,
            "# training: steps\tloss\n5\t2.5\n\n8\t1.5\n\n\n"
            "# test: steps\tloss\n6\t2\n\n\n"
            "# training: steps\taccuracy, %\n5\t10\n\n8\t30\n\n\n"
            "# test: steps\taccuracy, %\n6\t20.5\n");
  EXPECT_THAT(figure.script, HasSubstr("set arrow from 6, graph 0 to 6"));
  EXPECT_THAT(figure.script, HasSubstr("set label 'a' at 0,"));
  EXPECT_THAT(figure.script, HasSubstr("set label 'b' at 6,"));
}

constexpr const char* kPhasesWithoutSteps =
    R"({"kind": "train", "step": 5, "phase": "a", "loss": 2.5}
{"kind": "eval", "step": 5, "phase": "prune", "loss": 3}
{"kind": "eval", "step": 5, "phase": "again", "loss": 4}
{"kind": "train", "step": 9, "phase": "recover", "loss": 2}
{"kind": "eval", "step": 9, "phase": "last", "loss": 2}
)";

TEST(RunCurve, NamesPhasesWithoutSteps) {
  const std::string script = run_curve(kPhasesWithoutSteps).script;
  EXPECT_THAT(script, HasSubstr("set label 'prune, again, recover' at 5,"));
  EXPECT_THAT(script, HasSubstr("set label 'last' at 9,"));
  EXPECT_THAT(script, HasSubstr("set xrange [*:9.54]"));
}

TEST(RunCurve, TakesDataSetsApart) {
  const Figure figure = run_curve(
      R"({"kind": "train", "step": 4, "phase": "a", "loss": 3}
{"kind": "eval", "step": 4, "phase": "a", "data": "ten", "split": "test", "loss": 2}
{"kind": "train", "step": 8, "phase": "b", "loss": 1}
{"kind": "eval", "step": 8, "phase": "b", "data": "three", "split": "test", "loss": 0.5}
)");
  EXPECT_EQ(figure.data,
            "# training, ten: steps\tloss\n4\t3\n\n\n"
            "# test, ten: steps\tloss\n4\t2\n\n\n"
            "# training, three: steps\tloss\n8\t1\n\n\n"
            "# test, three: steps\tloss\n8\t0.5\n");
}

TEST(RunCurve, TakesSplitsApartAndLeavesOutWhatIsNotMeasured) {
  const Figure figure = run_curve(
      R"({"kind": "train", "step": 4, "phase": "a", "loss": 3}
{"kind": "eval", "step": 4, "phase": "a", "split": "validation", "loss": 2}
{"kind": "eval", "step": 4, "phase": "a", "split": "test", "loss": 1}
)");
  EXPECT_EQ(figure.data,
            "# training: steps\tloss\n4\t3\n\n\n"
            "# validation: steps\tloss\n4\t2\n\n\n"
            "# test: steps\tloss\n4\t1\n");
  EXPECT_THAT(figure.script, Not(HasSubstr("accuracy")));
}

TEST(RunCurve, PassesOverLinesOfOtherTypes) {
  const Figure figure = run_curve(R"({"kind": 5, "step": 4, "phase": "a", "loss": 3}
{"kind": "train", "step": "x", "phase": "a", "loss": 3}
{"kind": "train", "step": 1e300, "phase": "a", "loss": 3}
{"kind": "train", "step": 4, "phase": 7, "loss": 3}
{"kind": "train", "step": 4, "phase": "a", "loss": 3}
)");
  EXPECT_EQ(figure.data, "# training: steps\tloss\n4\t3\n");
}

TEST(RunCurve, SaysWhereThereIsNothingToDraw) {
  EXPECT_THROW(run_curve(""), Error);
  EXPECT_THROW(run_curve("{\"kind\": \"prune\", \"step\": 5}\nno JSON\n[]\n"), Error);
}

TEST(RunCurve, IsDrawnBesideTheMetricsWithoutAWord) {
  if (find_program("gnuplot").empty()) GTEST_SKIP() << "needs gnuplot";
  const std::string one_step =
      R"({"kind": "train", "step": 1, "phase": "a", "loss": 2.5, "accuracy": 10})";
  const std::string its_test =
      R"({"kind": "eval", "step": 1, "phase": "a", "loss": 2.5, "accuracy": 20})";
  const std::string no_accuracy = R"({"kind": "train", "step": 1, "phase": "a", "loss": 2.5})";
  for (const std::string& metrics :
       {std::string(kTwoPhases), std::string(kTwoPhases).substr(0, 76),
        std::string(kPhasesWithoutSteps), one_step, one_step + "\n" + its_test, no_accuracy}) {
    const test::TempDir folder;
    write_atomic(folder / "metrics.jsonl", metrics);
    EXPECT_EQ(test::said_by([&] { draw_run_curve(folder.path()); }), "") << metrics;
    EXPECT_THAT(read_text(folder / "figure.png"), ::testing::StartsWith("\x89PNG"));
    EXPECT_THAT(read_text(folder / "figure.svg"), HasSubstr("loss"));
  }
}

}  // namespace
}  // namespace moesaic
