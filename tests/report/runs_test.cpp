// SPDX-License-Identifier: Apache-2.0
#include "moesaic/report/runs.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "base/support.h"
#include "moesaic/base/file.h"
#include "moesaic/config/document.h"
#include "moesaic/report/experiment.h"
#include "moesaic/report/probe.h"
#include "report/runs_fixture.h"
#include "support/matchers.h"

namespace moesaic {
namespace {

using report_test::kTwoRows;
using report_test::Runs;
using report_test::runs_config;

/// Twice the steps, and a table of one number: registered once for this program.
void register_twice() {
  if (probes().find("twice") != nullptr) return;
  probes().add("twice", {.description = "twice the steps",
                         .metrics =
                             [](const Model&, const DataSplits&) {
                               return std::vector<Metric>{
                                   {.name = "twice", .label = "twice the steps", .digits = 0},
                                   table_metric("square", "squared", 0)};
                             },
                         .measure =
                             [](ProbedModel& subject, Measurement& measurement) {
                               const auto step = static_cast<double>(subject.step);
                               measurement.numbers["twice"] = 2 * step;
                               measurement.tables["square"] = {{"r"}, {"c"}, {{step * step}}};
                             }});
}

/// The two rows with arguments of the command line.
RunsConfig with_arguments(const std::vector<std::string>& arguments) {
  Document document = Document::from_text(report_test::runs_text(kTwoRows), "runs.json");
  for (const std::string& argument : arguments) document.set(argument);
  return parse<RunsConfig>(document.root());
}

TEST_F(Runs, AnArgumentThatEveryRowReplacesIsRefused) {
  const auto refused = [&](const std::vector<std::string>& arguments) {
    const RunsConfig config = with_arguments(arguments);
    const std::string planned = test::usage_of([&] { plan_rows_of(config); });
    EXPECT_EQ(test::usage_of([&] { run(config); }), planned);
    EXPECT_FALSE(std::filesystem::exists(folder_ / "out"));
    return planned;
  };
  const std::string common = R"(set={"phases.train.steps": 3})";
  EXPECT_THAT(refused({common, "train.phases.train.steps=9"}),
              HasSubstr("argument 'train.phases.train.steps=9': no effect, since "
                        "every row ('mixture') sets this itself"));
  EXPECT_THAT(refused({R"(rows=[{"name": "a", "set": {"model": {"name": "cluster-moe"}}}])",
                       "train.model.num_experts=2"}),
              HasSubstr("argument 'train.model.num_experts=2': no effect"));
}

TEST_F(Runs, AnArgumentThatSomeRowsReplaceIsWarnedOf) {
  const auto said = [&](const std::vector<std::string>& arguments) {
    const RunsConfig config = with_arguments(arguments);
    return test::said_by([&] { plan_rows_of(config); });
  };
  EXPECT_EQ(
      said({"train.model.num_experts=2"}),
      "warning: argument 'train.model.num_experts=2': 1 of 2 rows set this themselves and keep "
      "theirs, the first is 'single'\n");
  EXPECT_EQ(said({"train.seed=7", "num_runs=2"}), "");
  // Part of what it gives is left.
  EXPECT_EQ(said({R"(train.model={"name": "cluster-moe", "num_experts": 2, "router": {}})"}), "");
}

TEST_F(Runs, EveryRunIsAFunctionOfItsSeedAndIsMadeOnce) {
  const RunsConfig config = runs_config(kTwoRows);
  const std::vector<MeasuredRow> first = run(config);
  ASSERT_EQ(first.size(), 2U);
  ASSERT_EQ(first[0].runs.size(), 3U);
  ASSERT_EQ(first[1].runs.size(), 2U);
  EXPECT_NE(first[0].runs[0].final.numbers, first[0].runs[1].final.numbers);
  EXPECT_EQ(first[0].runs[0].final.numbers.at("steps"), 5);
  EXPECT_EQ(first[1].runs[0].final.numbers.at("steps"), 2);
  EXPECT_TRUE(first[0].runs[0].final.numbers.contains("entropy"));
  EXPECT_FALSE(first[1].runs[0].final.numbers.contains("entropy"));
  // One run is taken away and one is changed: what is left is used, the rest is made again, to the
  // digit.
  auto log = nlohmann::json::parse(read_text(folder_ / "out/runs.json"));
  log.erase("mixture#1");
  log["mixture#0"]["final"]["numbers"]["test_accuracy"] = 12.5;
  write_atomic(folder_ / "out/runs.json", log.dump());
  const std::vector<MeasuredRow> again = run(config);
  EXPECT_EQ(again[0].runs[1].final.numbers, first[0].runs[1].final.numbers);
  EXPECT_EQ(again[0].runs[0].final.numbers.at("test_accuracy"), 12.5);
}

TEST_F(Runs, TheBestSnapshotIsReportedBesideTheLast) {
  const RunsConfig config = runs_config(R"("rows": [{"name": "mixture", "num_runs": 1}],
    "set": {"phases.0.steps": 9},
    "snapshots": {"every": 2, "probes": ["test_accuracy", "test_loss"],
    "best": ["test_accuracy", "test_loss"], "converged": ["test_accuracy", "test_loss"]})");
  const RunRecord found = run(config).at(0).runs.at(0);
  std::vector<double> accuracy, loss;
  for (const Measurement& at : found.snapshots) {
    accuracy.push_back(at.numbers.at("test_accuracy"));
    loss.push_back(at.numbers.at("test_loss"));
  }
  EXPECT_GT(accuracy.size(), 3U);
  EXPECT_EQ(found.final.numbers.at("best_test_accuracy"), *std::ranges::max_element(accuracy));
  EXPECT_EQ(found.final.numbers.at("best_test_loss"), *std::ranges::min_element(loss));
  const auto first_that = [&](const std::vector<double>& values, auto good) {
    const auto place = std::find_if(values.begin() + 1, values.end(), good) - values.begin();
    return static_cast<double>(found.snapshots.at(place).step);
  };
  EXPECT_EQ(found.final.numbers.at("converged_test_accuracy"),
            first_that(accuracy, [&](double x) { return x >= accuracy.back() - 0.5; }));
  EXPECT_EQ(found.final.numbers.at("converged_test_loss"),
            first_that(loss, [&](double x) { return x <= loss.back() + 0.5; }));
  const double each = found.final.numbers.at("step_seconds");
  EXPECT_GT(each, 0);
  EXPECT_LE(found.final.numbers.at("seconds_to_test_accuracy"), 9 * each * 1.000001);

  // A file of an earlier version has another name.
  auto log = nlohmann::json::parse(read_text(folder_ / "out/runs.json"));
  auto& numbers = log["mixture#0"]["final"]["numbers"];
  numbers["update_seconds"] = numbers.at("step_seconds");
  numbers.erase("step_seconds");
  write_atomic(folder_ / "out/runs.json", log.dump());
  EXPECT_EQ(run(config).at(0).runs.at(0).final.numbers, found.final.numbers);
}

TEST_F(Runs, ConvergenceCountsEpochsOfTheLastPhase) {
  const RunsConfig config = runs_config(R"("rows": [{"name": "mixture", "num_runs": 1}],
    "set": {"phases.0.steps": null, "phases.0.epochs": 3},
    "snapshots": {"every": 1, "by_epoch": true, "probes": ["test_accuracy"],
                  "converged": ["test_accuracy"]})");
  const RunRecord found = run(config).at(0).runs.at(0);
  const double epochs = found.final.numbers.at("converged_test_accuracy");
  EXPECT_GE(epochs, 1) << "before the first step nothing has converged";
  EXPECT_LE(epochs, 3);
  EXPECT_EQ(epochs, std::floor(epochs));
}

TEST_F(Runs, AfterAPhaseIsMeasuredInTheRowsThatHaveIt) {
  const RunsConfig config = runs_config(R"("rows": [{"name": "mixture", "num_runs": 1},
      {"name": "other", "num_runs": 1, "set": {"phases.0.name": "other"}}],
    "phase_metrics": {"other": {"entropy": "entropy_after"}})");
  const std::vector<MeasuredRow> found = run(config);
  EXPECT_FALSE(found[0].runs[0].final.numbers.contains("entropy_after"));
  EXPECT_EQ(found[1].runs[0].final.numbers.at("entropy_after"),
            found[1].runs[0].final.numbers.at("entropy"));
}

TEST_F(Runs, AfterAPhaseThatNoRowHasNothingIsMeasured) {
  EXPECT_THAT(refusal(R"("rows": [{"name": "a"}], "phase_metrics": {"othre": {"entropy": "e"}})"),
              HasSubstr("no row has a phase 'othre'"));
}

/// Two phases, of which the first one's measurements are a row of their own.
const char* const kEarlierRow = R"("rows": [
    {"name": "late", "num_runs": 2, "phase_rows": {"early": "soon"}, "set": {"phases": [
      {"name": "early", "data": "clusters-setting1", "batch_size": 400, "steps": 2},
      {"name": "train", "data": "clusters-setting3", "batch_size": 400, "steps": 3}]}}],
  "probes": ["steps"],
  "phase_metrics": {"early": {"test_accuracy": "accuracy", "entropy": "entropy"},
            "train": {"test_accuracy": "accuracy"}},
  "plots": [{"kind": "points", "metrics": ["accuracy"], "rows": ["soon", "late"]}],
  "paper": {"soon": {"entropy": 1}})";

TEST_F(Runs, AnEarlierPhaseMayBeARowOfItsOwn) {
  const RunsConfig config = runs_config(kEarlierRow);
  const std::vector<MeasuredRow> found = run(config);
  ASSERT_EQ(found.size(), 2U);
  EXPECT_EQ(found[0].name, "soon");
  EXPECT_EQ(found[1].name, "late");
  const Measurement &soon = found[0].runs.at(1).final, &late = found[1].runs.at(1).final;
  EXPECT_EQ(soon.step, 2);
  EXPECT_THAT(late.numbers, ::testing::Contains(std::pair<const std::string, double>("steps", 5)));
  EXPECT_FALSE(late.numbers.contains("entropy"));
  EXPECT_FALSE(soon.numbers.contains("steps"));
  // It is measured on the data of its own phase, as in a run that ends there.
  const std::string rest = R"("rows": [{"name": "alone", "num_runs": 2, "set": {"phases": [
      {"name": "early", "data": "clusters-setting1", "batch_size": 400, "steps": 2}]}}],
    "probes": ["test_accuracy", "entropy"])";
  std::filesystem::rename(folder_ / "out", folder_ / "kept");
  const Measurement alone = run(runs_config(rest)).at(0).runs.at(1).final;
  EXPECT_EQ(alone.numbers.at("test_accuracy"), soon.numbers.at("accuracy"));
  EXPECT_EQ(alone.numbers.at("entropy"), soon.numbers.at("entropy"));
  // Of a run whose earlier row is lost both are made again.
  std::filesystem::remove_all(folder_ / "out");
  std::filesystem::rename(folder_ / "kept", folder_ / "out");
  auto log = nlohmann::json::parse(read_text(folder_ / "out/runs.json"));
  ASSERT_EQ(log.size(), 4U);
  log.erase("soon#1");
  log["late#0"]["final"]["numbers"]["accuracy"] = 12.5;
  write_atomic(folder_ / "out/runs.json", log.dump());
  const std::vector<MeasuredRow> again = run(config);
  EXPECT_EQ(again[0].runs.at(1).final.numbers, soon.numbers);
  EXPECT_EQ(again[1].runs.at(0).final.numbers.at("accuracy"), 12.5);
}

TEST_F(Runs, AnEarlierRowNeedsAPhaseThatIsMeasured) {
  const auto with = [&](const std::string& earlier) {
    return refusal(R"("rows": [{"name": "a", "phase_rows": {)" + earlier +
                   R"(}}], "phase_metrics": {"train": {"entropy": "e"}})");
  };
  EXPECT_THAT(with(R"("trian": "b")"), HasSubstr("row 'a': 'phase_rows' names the phase 'trian', "
                                                 "at whose end 'phase_metrics' measures nothing"));
  EXPECT_THAT(with(R"("train": "a")"), HasSubstr("two rows are called 'a'"));
}

/// How far the first parameter is from where it started: registered once for this program.
void register_moved() {
  if (probes().find("moved") != nullptr) return;
  probes().add("moved", {.description = "distance from the start",
                         .metrics =
                             [](const Model&, const DataSplits&) {
                               return std::vector<Metric>{{.name = "moved", .label = "moved"}};
                             },
                         .measure =
                             [](ProbedModel& subject, Measurement& measurement) {
                               const at::Tensor now = subject.model.parameters()[0];
                               const at::Tensor then = subject.start()->parameters()[0];
                               measurement.numbers["moved"] = (now - then).norm().item<double>();
                             }});
}

TEST_F(Runs, ProbesKnowTheStartOfEachRun) {
  register_moved();
  const std::vector<MeasuredRow> rows = run(runs_config(R"("rows": [{"name": "a", "num_runs": 2}],
    "probes": ["moved"], "snapshots": {"every": 5, "probes": ["moved"]},
    "plots": [{"kind": "points", "metrics": ["moved"]}])"));
  for (const RunRecord& made : rows[0].runs) {
    EXPECT_EQ(made.snapshots.front().numbers.at("moved"), 0.0);
    EXPECT_GT(made.final.numbers.at("moved"), 0.0);
  }
}

/// A number that no run but those of three steps has: registered once for this program.
void register_rare() {
  if (probes().find("rare") != nullptr) return;
  probes().add("rare", {.description = "number of some runs",
                        .metrics =
                            [](const Model&, const DataSplits&) {
                              return std::vector<Metric>{
                                  {.name = "rare", .label = "rare", .is_optional = true}};
                            },
                        .measure =
                            [](ProbedModel& subject, Measurement& measurement) {
                              if (subject.step == 3) measurement.numbers["rare"] = 7;
                            }});
}

TEST_F(Runs, ANumberThatARunDoesNotHaveIsNoneOfItsRow) {
  register_rare();
  const RunsConfig config = runs_config(R"("rows": [
      {"name": "a", "num_runs": 1, "set": {"phases.0.steps": 2}},
      {"name": "b", "num_runs": 1, "set": {"phases.0.steps": 3}}],
    "probes": ["rare", "steps"], "snapshots": {"every": 1, "probes": ["rare"], "best": ["rare"]},
    "plots": [{"kind": "points", "metrics": ["rare"]}])");
  const std::vector<MeasuredRow> first = run(config);
  EXPECT_FALSE(first[0].runs[0].final.numbers.contains("rare"));
  EXPECT_EQ(first[1].runs[0].final.numbers.at("best_rare"), 7);
  std::vector<MeasuredRow> again;
  EXPECT_EQ(test::said_by([&] { again = run(config); }), "") << "from the log";
  Results results;
  results.rows = runs_results(config, again);
  EXPECT_EQ(results.find("a", "rare"), nullptr);
  EXPECT_EQ(results.find("b", "rare")->measured, 7);
}

TEST_F(Runs, FitsAreSlopesOfLogarithms) {
  const RunsConfig config = runs_config(R"("rows": [
      {"name": "a", "num_runs": 2, "set": {"phases.0.steps": 2}},
      {"name": "b", "num_runs": 1, "set": {"phases.0.steps": 4}},
      {"name": "c", "num_runs": 1, "set": {"phases.0.steps": 16}}],
    "fits": [{"name": "growth", "metric": "steps", "x": {"a": 10, "b": 30, "c": 40}}],
    "paper": {"growth": {"steps_exponent": 2}})");
  const std::vector<ResultRow> results = runs_results(config, run(config));
  const ResultRow& found = results.back();
  EXPECT_EQ(found.name, "growth");
  EXPECT_EQ(found.metric, "steps_exponent");
  EXPECT_EQ(found.num_runs, 1);
  EXPECT_TRUE(found.values.contains(5)) << "train.seed";
  EXPECT_EQ(find_result(results, "a", "steps")->values, (SeedValues{{5, 2.0}, {6, 2.0}}));
  EXPECT_EQ(found.paper.value, 2.0);
  const double x[] = {std::log(10.0), std::log(30.0), std::log(40.0)};
  const double y[] = {std::log(2.0), std::log(4.0), std::log(16.0)};
  const double mx = (x[0] + x[1] + x[2]) / 3, my = (y[0] + y[1] + y[2]) / 3;
  double up = 0.0, down = 0.0;
  for (int i = 0; i < 3; ++i) {
    up += (x[i] - mx) * (y[i] - my);
    down += (x[i] - mx) * (x[i] - mx);
  }
  EXPECT_NEAR(found.measured, up / down, 1e-9);
}

TEST_F(Runs, FitsNeedRowsAndMetricsThatExist) {
  const std::string rows = R"("rows": [{"name": "a"}, {"name": "b"}], "fits": [{"name": "f", )";
  EXPECT_THAT(refusal(rows + R"("metric": "stepz", "x": {"a": 1, "b": 2}}])"),
              HasSubstr("no row has the metric 'stepz'"));
  EXPECT_THAT(
      test::usage_of([&] { runs_config(rows + R"("metric": "steps", "x": {"a": 1, "c": 2}}])"); }),
      HasSubstr("fits: unknown row 'c'"));
  EXPECT_THAT(
      test::usage_of([&] { runs_config(rows + R"("metric": "steps", "x": {"a": 1, "b": 1}}])"); }),
      HasSubstr("a fit needs rows at two values of x or more, found 1"));
}

TEST_F(Runs, ATableHasNoBestSnapshot) {
  EXPECT_THAT(refusal(R"("rows": [{"name": "a"}], "snapshots": {"probes": ["dispatch"], "best":
                         ["dispatch"]})"),
              HasSubstr("'dispatch' is a table, for which 'best' is not defined"));
}

TEST_F(Runs, SnapshotsMayCountEpochs) {
  // 16 000 examples in batches of 4000 are an epoch of four steps.
  const RunsConfig config = runs_config(R"("rows": [{"name": "mixture", "num_runs": 1}],
    "set": {"phases.0.batch_size": 4000, "phases.0.steps": 9},
    "snapshots": {"every": 1, "by_epoch": true, "probes": ["steps"]})");
  const RunRecord found = run(config).at(0).runs.at(0);
  std::vector<int64_t> steps;
  for (const Measurement& at : found.snapshots) steps.push_back(at.step);
  EXPECT_THAT(steps, ElementsAre(0, 4, 8, 9));
}

TEST_F(Runs, APlotOfTheLastPhaseHasASnapshotWhereItBegins) {
  const auto steps = [&](const std::string& last_phase) {
    std::filesystem::remove_all(folder_ / "out");
    const std::string phase = R"("kind": "gated_sgd", "data": "gated-small", "loss": "squared",
                                 "block": 1, "batch_size": 64, "steps": )";
    const std::string text = R"({"name": "x", "kind": "runs", "description": "d", "num_runs": 1,
        "train": {"name": "x", "model": {"name": "gated-moe", "width": 5}, "phases": [
          {"name": "a", )" + phase +
                             R"(5}, {"name": "b", )" + phase + R"(6}]},
        "rows": [{"name": "row"}], "probes": ["steps"],
        "snapshots": {"every": 4, "probes": ["steps"]},
        "plots": [{"kind": "curves", "metrics": ["steps"], "last_phase": )" +
                             last_phase + "}]}";
    const auto rows = run(parse<RunsConfig>(Document::from_text(text, "runs.json").root()));
    std::vector<int64_t> steps;
    for (const Measurement& at : rows.at(0).runs.at(0).snapshots) steps.push_back(at.step);
    return steps;
  };
  EXPECT_THAT(steps("true"), ElementsAre(0, 4, 5, 8, 11));
  EXPECT_THAT(steps("false"), ElementsAre(0, 4, 8, 11));
}

TEST_F(Runs, SnapshotsAreTakenWhileARunTrainsAndAtItsEnd) {
  const std::vector<MeasuredRow> rows = run(runs_config(R"("rows": [{"name": "a", "num_runs": 1}],
      "snapshots": {"every": 2, "probes": ["dispatch", "entropy"]})"));
  const RunRecord& run = rows[0].runs[0];
  std::vector<int64_t> steps;
  for (const Measurement& at : run.snapshots) {
    steps.push_back(at.step);
    double examples = 0.0;
    for (const auto& row : at.tables.at("dispatch").values) {
      for (const double count : row) examples += count;
    }
    EXPECT_EQ(examples, 16000);
  }
  EXPECT_THAT(steps, ElementsAre(0, 2, 4, 5));
  // The router starts at zero, so that its noise alone parts the clusters.
  EXPECT_GT(run.snapshots.front().numbers.at("entropy"), 1.38);
  EXPECT_EQ(run.snapshots.back().numbers.at("entropy"), run.final.numbers.at("entropy"));
  EXPECT_EQ(run.final.tables.at("dispatch").rows,
            (std::vector<std::string>{"cluster 1", "cluster 2", "cluster 3", "cluster 4"}));
  EXPECT_EQ(run.final.tables.at("dispatch").columns.size(), 4U);
}

TEST_F(Runs, AProgramMeasuresWithAProbeOfItsOwn) {
  register_twice();
  const std::vector<MeasuredRow> rows =
      run(runs_config(R"("rows": [{"name": "a", "num_runs": 1}], "probes": ["twice"],
          "plots": [{"kind": "points", "metrics": ["twice"]},
                    {"kind": "heatmap", "metrics": ["square"]}])"));
  EXPECT_EQ(rows[0].runs[0].final.numbers.at("twice"), 10);
  EXPECT_EQ(rows[0].runs[0].final.tables.at("square").values[0][0], 25);
  EXPECT_FALSE(rows[0].runs[0].final.numbers.contains("test_accuracy"));
}

TEST_F(Runs, MeansAndSpreadsStandBesideThePapers) {
  const RunsConfig config = runs_config(R"("rows": [{"name": "it's_a mixture"}, {"name": "single"}],
      "paper": {"it's_a mixture": {"test_accuracy": [91, 1.5], "entropy": 0.5},
                "single": {"test_accuracy": [60, 2]}})");
  const auto rows = runs_results(config, report_test::measured_rows());
  ASSERT_EQ(rows.size(), 3U) << "tables are no rows";
  EXPECT_EQ(rows[0].measured, 92.0);
  EXPECT_NEAR(rows[0].std.value(), std::sqrt(8.0), 1e-12);
  EXPECT_EQ(rows[0].values, (SeedValues{{1, 90.0}, {2, 94.0}}));
  EXPECT_EQ(rows[0].num_runs, 2);
  EXPECT_EQ(rows[0].paper.value, 91.0);
  EXPECT_EQ(rows[0].verdict(), "inside");
  EXPECT_EQ(rows[1].metric, "entropy");
  EXPECT_EQ(rows[1].verdict(), "") << "the paper prints no spread";
  EXPECT_EQ(rows[1].digits, 3);
  EXPECT_FALSE(rows[2].std);
  EXPECT_EQ(rows[2].verdict(), "outside");
}

TEST_F(Runs, RefusesWhatDoesNotFitBeforeAnythingRuns) {
  EXPECT_THAT(refusal(R"("rows": [{"name": "a", "set": {"model.activation": "cubik"}}])"),
              HasSubstr("cubic"));
  EXPECT_THAT(refusal(R"("rows": [{"name": "a", "set": {"phases.0.data": "no-such-data"}}])"),
              HasSubstr("no-such-data"));
  EXPECT_THAT(refusal(R"("rows": [{"name": "a"}], "probes": ["entropi"])"),
              AllOf(HasSubstr("runs.json:12:"), HasSubstr("unknown probe 'entropi'"),
                    HasSubstr("did you mean 'entropy'?")));
  EXPECT_THAT(refusal(R"("rows": [{"name": "a"}],
                         "snapshots": {"probes": ["lod"]})"),
              AllOf(HasSubstr("runs.json:13:"), HasSubstr("did you mean 'load'?")));
  EXPECT_THAT(refusal(R"("rows": [{"name": "a"}], "paper": {"a": {"accuracy": 1}})"),
              HasSubstr("no row has the metric 'accuracy'; choose one of test_accuracy"));
  EXPECT_THAT(
      refusal(R"("rows": [{"name": "a"}], "plots": [{"kind": "curves", "metrics": ["entropy"]}])"),
      HasSubstr("no row has the metric 'entropy'"))
      << "without snapshots";
  EXPECT_THAT(refusal(R"("rows": [{"name": "a"}], "probes": ["dispatch"],
                         "plots": [{"kind": "points", "metrics": ["dispatch"]}])"),
              HasSubstr("a plot of kind 'points' shows numbers, but 'dispatch' is a table"));
  EXPECT_THAT(refusal(R"("rows": [{"name": "a"}],
                         "plots": [{"kind": "heatmap", "metrics": ["steps"]}])"),
              HasSubstr("a plot of kind 'heatmap' shows tables, but 'steps' is a number"));
  EXPECT_THAT(refusal(R"("rows": [{"name": "a"}],
                         "plots": [{"kind": "power", "metrics": ["steps"]}])"),
              HasSubstr("a plot of kind 'power' needs a metric of 'fits'"));
  EXPECT_THAT(
      refusal(R"("rows": [{"name": "a", "set": {"model.router": null, "model.num_experts": 1,
                         "phases.0.optimizers": []}}],
                         "plots": [{"kind": "points", "metrics": ["entropy"]}])"),
      HasSubstr("no row has the metric 'entropy'"))
      << "without a router";
}

}  // namespace
}  // namespace moesaic
