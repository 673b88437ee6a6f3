// SPDX-License-Identifier: Apache-2.0
// Runs on data with a validation split: decisions follow it, the test split is for the end.

#include "moesaic/checkpoint/store.h"
#include "support/matchers.h"
#include "train/train_fixture.h"

namespace moesaic {
namespace {

using namespace train_test;  // NOLINT(google-build-using-namespace): the fixture of this folder
using ValidationRun = test::InFolder;

struct Seen {
  int64_t step = 0;
  std::string split;
  double accuracy = 0.0, loss = 0.0;
};

/// Trains one phase of six epochs of three steps, evaluated after every second epoch.
std::vector<Seen> evaluations(const fs::path& out, const std::vector<std::string>& changes = {}) {
  std::vector<std::string> all = {
      "evaluate_every=2 epochs",
      "phases=[{\"name\": \"only\", \"data\": \"three\", \"batch_size\": 6, \"epochs\": 6, "
      "\"evaluate\": true, \"optimizer\": {\"name\": \"adamw\", \"lr\": 0.01}}]"};
  all.insert(all.end(), changes.begin(), changes.end());
  TrainerOptions options = options_for(out);
  options.open = open_with_splits({"train", "validation", "test"});
  Trainer(config_of(four_phases(), all), options).run();
  std::vector<Seen> seen;
  for (const Json& line : metric_lines(out, "eval")) {
    seen.push_back({line["step"], line["split"], line["accuracy"], line["loss"]});
  }
  return seen;
}

TEST_F(ValidationRun, TestsOnlyAtTheEnd) {
  std::vector<std::string> order;
  for (const Seen& seen : evaluations(folder / "run")) {
    order.push_back(seen.split + " " + std::to_string(seen.step));
  }
  EXPECT_THAT(order, ElementsAre("validation 6", "validation 12", "validation 18", "test 18"));
}

TEST_F(ValidationRun, BestFollowsTheChosenMetricOfTheValidationSplit) {
  int64_t seed = 0;
  Seen accurate, lossless;
  const auto settings = [&](const std::string& best) {
    return std::vector<std::string>{"evaluate_every=1 epoch", "phases.only.epochs=10",
                                    "phases.only.optimizer.lr=0.05", "best_metric=" + best,
                                    "seed=" + std::to_string(seed)};
  };
  while (accurate.step == lossless.step && seed < 10) {  // Until the two metrics disagree.
    ++seed;
    accurate.accuracy = -1.0;
    lossless.loss = 1e9;
    const fs::path run = folder / ("accuracy" + std::to_string(seed));
    for (const Seen& seen : evaluations(run, settings("accuracy"))) {
      if (seen.split == "validation" && seen.accuracy > accurate.accuracy) accurate = seen;
      if (seen.split == "validation" && seen.loss < lossless.loss) lossless = seen;
    }
    EXPECT_EQ(load_checkpoint(run / "best").state["best_step"], accurate.step);
  }
  ASSERT_NE(accurate.step, lossless.step);
  evaluations(folder / "loss", settings("loss"));
  EXPECT_EQ(load_checkpoint(folder / "loss/best").state["best_step"], lossless.step);
}

TEST_F(ValidationRun, EvaluatesByStepsWhereTheIntervalSaysSo) {
  std::vector<int64_t> steps;
  for (const Seen& seen : evaluations(folder / "run", {"evaluate_every=7 steps"})) {
    if (seen.split == "validation") steps.push_back(seen.step);
  }
  EXPECT_THAT(steps, ElementsAre(7, 14, 18));
}

TEST_F(ValidationRun, EndsByNamingTheBestEvaluation) {
  TrainerOptions options = options_for(folder / "run");
  options.open = open_with_splits({"train", "validation", "test"});
  const TrainResult result = Trainer(config_of(four_phases()), options).run();
  EXPECT_EQ(result.best, folder / "run/best");
  EXPECT_THAT(result.best_value,
              AllOf(HasSubstr("validation accuracy "), HasSubstr(" at step 12")));
  EXPECT_EQ(Trainer(config_of(four_phases()), options_for("")).run().best, "");
}

TEST_F(ValidationRun, AnUnknownMetricGetsTheNearestOne) {
  EXPECT_THAT(error_of([] { evaluations("", {"best_metric=acuracy"}); }),
              HasSubstr("did you mean 'accuracy'?"));
}

}  // namespace
}  // namespace moesaic
