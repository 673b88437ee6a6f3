// SPDX-License-Identifier: Apache-2.0

#include "base/support.h"
#include "moesaic/base/file.h"
#include "moesaic/data/source.h"
#include "moesaic/models/registry.h"
#include "moesaic/report/experiment.h"
#include "report/experiment_run.h"
#include "report/runs_fixture.h"
#include "support/matchers.h"

namespace moesaic {
namespace {

using report_test::Runs;
using report_test::runs_config;

std::vector<std::string> names_of(const RunsConfig& config) {
  std::vector<std::string> names;
  for (const PlannedRow& row : planned_rows(config)) names.push_back(row.name);
  return names;
}

std::string problem(const std::string& rest) {
  return test::usage_of([&] { runs_config(rest); });
}

TEST(RunsConfig, RowsAreThoseGivenAndTheProductOfTheAxes) {
  const RunsConfig config =
      runs_config(R"("set": {"model.num_filters": 2}, "rows": [{"name": "alone"}],
      "grid": [[{"name": "a", "set": {"seed": 1}}, {"name": "b", "set": {"seed": 2}, "num_runs": 7}],
               [{"name": "x"}, {"name": "y", "set": {"seed": 3, "model.num_experts": 8}}]])");
  EXPECT_THAT(names_of(config), ElementsAre("alone", "a, x", "a, y", "b, x", "b, y"));
  const std::vector<PlannedRow> rows = planned_rows(config);
  EXPECT_EQ(rows[0].num_runs, 3);
  EXPECT_EQ(rows[3].num_runs, 7);
  const RunConfig last = config_of(config, rows[4]);
  EXPECT_EQ(last.seed, 3) << "a later axis comes after an earlier one";
  EXPECT_EQ(last.model.at("num_experts").as_int(), 8);
  EXPECT_EQ(last.model.at("num_filters").as_int(), 2);
  EXPECT_EQ(last.phases[0].steps, 5);
  RunsConfig shorter = config;
  shorter.max_steps = 2;
  EXPECT_EQ(config_of(shorter, rows[4]).phases[0].steps, 2);
  EXPECT_EQ(config_of(config, rows[1]).seed, 1);
}

TEST(RunsConfig, RunsKnowWhichSplitsTheDataHave) {
  // Pruning in a phase calibrates by validation images where there are some.
  const std::vector<std::string> splits = {"train", "validation", "test"};
  DatasetCache datasets(DatasetOpener(open_dataset, [splits](std::string_view) { return splits; }));
  EXPECT_EQ(opener_of(datasets).splits("any"), splits);
}

TEST(RunsConfig, FormerKeysOfARowOverrideThoseOfTheRun) {
  std::string text = report_test::runs_text(R"("set": {"model.filters": 2},
      "rows": [{"name": "a", "runs": 4}, {"name": "b", "set": {"model.experts": 8}}])");
  const std::string present = R"("num_experts": 4, "num_filters": 4)";
  text.replace(text.find(present), present.size(), R"("experts": 4, "filters": 4)");
  const auto config = parse<RunsConfig>(Document::from_text(text, "former.json").root());
  const std::vector<PlannedRow> rows = planned_rows(config);
  EXPECT_EQ(rows[0].num_runs, 4);
  const Json model = build_meta_model(config_of(config, rows[1]).model)->config();
  EXPECT_EQ(model.at("num_experts"), 8);
  EXPECT_EQ(model.at("num_filters"), 2);
}

TEST(RunsConfig, FormerKeyOfAnExportIsRead) {
  const auto exported = parse<ExportChoice>(
      Document::from_text(R"({"keep": 2, "criterion": "random"})", "former.json").root());
  EXPECT_EQ(exported.num_experts, 2);
}

TEST_F(Runs, FormerKeyInAGridIsRead) {
  EXPECT_THAT(refusal(R"("grid": [[{"name": "a", "set": {"phases.0.accumulate": 3}}]])"),
              HasSubstr("gradient_accumulation_steps 3 does not divide"));
}

TEST(RunsConfig, ASeparatorStandsBetweenTheNamesOfPoints) {
  EXPECT_THAT(
      names_of(runs_config(
          R"("separator": "/", "grid": [[{"name": "a"}], [{"name": "x"}, {"name": "y"}]])")),
      ElementsAre("a/x", "a/y"));
}

TEST(RunsConfig, ErrorsOfARowsSettingsNameTheirLine) {
  const RunsConfig config = runs_config(R"("rows": [{"name": "a", "set": {"sed": 1}}])");
  EXPECT_THAT(test::usage_of([&] { config_of(config, planned_rows(config)[0]); }),
              ::testing::AllOf(HasSubstr("runs.json:12:"), HasSubstr("did you mean 'seed'?")));
}

TEST(RunsConfig, RefusesWhatIsNoTableOfRows) {
  EXPECT_THAT(problem(R"("num_runs": 1)"), HasSubstr("is given twice"));
  EXPECT_THAT(problem(R"("separator": " ")"),
              HasSubstr("one of 'rows', 'grid' and 'keep' must be given"));
  EXPECT_THAT(problem(R"("grid": [[{"name": "a"}], []])"),
              HasSubstr("grid.1 must have at least one point"));
  EXPECT_THAT(problem(R"("rows": [{"name": "a"}], "grid": [[{"name": "a"}]])"),
              HasSubstr("two rows are called 'a'"));
  EXPECT_THAT(problem(R"("rows": [{"name": "a\nexit"}])"),
              HasSubstr("the row 'a\\nexit' has a control character in its name"));
  EXPECT_THAT(problem(R"("rows": [{"name": "a"}], "probes": ["steps", "entropy", "steps"])"),
              HasSubstr("the probe 'steps' is listed twice"));
  EXPECT_THAT(problem(R"("rows": [{"name": "a"}], "snapshots": {"probes": ["load", "load"]})"),
              HasSubstr("the probe 'load' is listed twice"));
  std::string axes;
  for (int i = 0; i < 14; ++i) axes += R"([{"name": "0"}, {"name": "1"}],)";
  EXPECT_THAT(problem(R"("grid": [)" + axes + R"([{"name": "z"}]])"),
              HasSubstr("more than 10000 rows"));
  EXPECT_THAT(problem(R"("rows": [{"name": "a"}], "plots": [{"kind": "pints", "metrics": ["x"]}])"),
              HasSubstr("did you mean 'points'?"));
  EXPECT_THAT(
      problem(R"("rows": [{"name": "a"}], "plots": [{"kind": "scatter", "metrics": ["x"]}])"),
      HasSubstr("two metrics, x and y, found 1"));
}

TEST(RunsConfig, ReadsWhatThePaperPrints) {
  const RunsConfig config = runs_config(R"("rows": [{"name": "a, b"}], "paper": {"a, b": {
      "entropy": 0.5, "steps": [3], "test_accuracy": [99, 0.5],
      "dispatch": {"initial": [1, 2], "rows": [[1, 0], [0, 2]]}}})");
  EXPECT_EQ(paper_number(config.paper, "a, b", "entropy").value, 0.5);
  EXPECT_FALSE(paper_number(config.paper, "a, b", "steps").std);
  EXPECT_EQ(paper_number(config.paper, "a, b", "test_accuracy").std, 0.5);
  EXPECT_FALSE(paper_number(config.paper, "a, b", "load").value);
  EXPECT_FALSE(paper_number(config.paper, "c", "entropy").value);
  EXPECT_EQ(paper_table(config.paper, "a, b", "dispatch")->rows[1][1], 2);
  EXPECT_THAT(test::usage_of([&] { paper_number(config.paper, "a, b", "dispatch"); }),
              HasSubstr("unknown key 'initial'"));
  const RunsConfig bounds = runs_config(R"("rows": [{"name": "a"}], "paper": {"a": {
      "entropy": {"at_most": 1, "at_least": 0.5}, "steps": {}}})");
  EXPECT_EQ(paper_number(bounds.paper, "a", "entropy").bound->at_most, 1.0);
  EXPECT_FALSE(paper_number(bounds.paper, "a", "entropy").value);
  EXPECT_THAT(test::usage_of([&] { paper_number(bounds.paper, "a", "steps"); }),
              HasSubstr("a bound needs at_most, at_least or both"));
  const RunsConfig negative =
      runs_config(R"("rows": [{"name": "a"}], "paper": {"a": {"entropy": [1, -1]}})");
  EXPECT_THAT(test::usage_of([&] { paper_number(negative.paper, "a", "entropy"); }),
              HasSubstr("a standard deviation must not be negative, found -1"));
  EXPECT_THAT(problem(R"("rows": [{"name": "cubic"}], "paper": {"cubik": {}})"),
              HasSubstr("did you mean 'cubic'?"));
  EXPECT_THAT(problem(R"("rows": [{"name": "a"}], "paper": {"a": {"entropy": [1, 2, 3]}})"),
              HasSubstr("a value or [value, std]"));
  const RunsConfig uneven = runs_config(R"("rows": [{"name": "a"}],
      "paper": {"a": {"dispatch": {"rows": [[1, 2], [3]]}}})");
  EXPECT_THAT(test::usage_of([&] { paper_table(uneven.paper, "a", "dispatch"); }),
              HasSubstr("every list in 'rows' must have 2 numbers, found a list of 1"));
}

TEST(RunsConfig, GoesOnInAFolderThatStoredEpochsAsABareNumber) {
  const test::TempDir folder;
  const auto run = [&] {
    std::vector<MeasuredRow> rows;
    measure_rows(runs_config(R"("rows": [{"name": "a", "num_runs": 1,
                                         "set": {"evaluate_every": "2 epochs"}}])"),
                 {.out = folder / "out", .show_progress = false}, rows);
  };
  run();
  const std::filesystem::path file = folder / "out/config.json";
  auto stored = nlohmann::ordered_json::parse(read_text(file));
  ASSERT_EQ(stored["runs"]["a"]["evaluate_every"], "2 epochs");
  stored["runs"]["a"]["evaluate_every"] = 2;
  write_atomic(file, stored.dump(2));
  EXPECT_NO_THROW(run());
}

/// Every row of a shipped experiment, with its run.
std::map<std::string, RunConfig> shipped_runs(const std::string& name) {
  const auto config = parse<RunsConfig>(load_experiment(name, Scale::paper).config);
  std::map<std::string, RunConfig> runs;
  for (const PlannedRow& row : planned_rows(config)) runs[row.name] = config_of(config, row);
  return runs;
}

std::string activation(const RunConfig& run) {
  return run.model.at("activation").as_string();
}

TEST(ShippedRuns, Table1HasSingleNetworksAndMixturesInFourSettings) {
  const auto runs = shipped_runs("clusters/table1");
  EXPECT_EQ(runs.size(), 24U);
  for (const auto& [name, run] : runs) {
    const bool single = name.find("/single") != std::string::npos;
    EXPECT_EQ(run.phases[0].data, "clusters-" + name.substr(0, name.find('/'))) << name;
    EXPECT_EQ(run.phases[0].steps, single ? 801 : 501) << name;
    EXPECT_EQ(run.model.at("router").is_null(), single) << name;
    EXPECT_EQ(run.model.at("init_scale").as_double(), single ? 1.0 : 0.001) << name;
    EXPECT_EQ(activation(run), name.find("linear") != std::string::npos ? "identity" : "cubic");
    const int64_t filters = name.ends_with("512") ? 512 : single ? 128 : 16;
    EXPECT_EQ(run.model.at("num_filters").as_int(), filters) << name;
  }
  const auto config = parse<RunsConfig>(load_experiment("clusters/table1", Scale::paper).config);
  EXPECT_EQ(config.num_runs, 10);
  EXPECT_EQ(config.paper.size(), 24U);
  const auto quick = parse<RunsConfig>(load_experiment("clusters/table1", Scale::quick).config);
  EXPECT_LT(quick.num_runs, 10);
  EXPECT_GT(quick.max_steps, 0);
}

TEST(ShippedRuns, Tables7And8AreSingleNetworksOfSixActivations) {
  const std::vector<std::pair<std::string, std::string>> activations = {
      {"linear", "identity"}, {"cubic", "cubic"}, {"relu", "relu"},
      {"celu", "celu"},       {"gelu", "gelu"},   {"tanh", "tanh"}};
  const auto table7 = shipped_runs("clusters/table7"), table8 = shipped_runs("clusters/table8");
  EXPECT_EQ(table7.size(), 6U);
  EXPECT_EQ(table8.size(), 12U);
  for (const auto& [name, wanted] : activations) {
    for (const std::string place : {"", "setting1/", "setting2/"}) {
      const RunConfig& run = (place.empty() ? table7 : table8).at(place + name);
      EXPECT_EQ(activation(run), wanted);
      EXPECT_TRUE(run.model.at("router").is_null());
      EXPECT_EQ(run.phases[0].data,
                "clusters-" + (place.empty() ? "table7" : place.substr(0, place.size() - 1)));
      EXPECT_TRUE(load_dataset_spec(run.phases[0].data).is_generated());
    }
  }
}

TEST(ShippedRuns, Table9BalancesLinearMixturesAlone) {
  const auto runs = shipped_runs("clusters/table9");
  EXPECT_EQ(runs.size(), 8U);
  for (const auto& [name, run] : runs) {
    const bool balanced = name.ends_with("linear_balanced");
    EXPECT_EQ(activation(run), balanced ? "identity" : "cubic");
    EXPECT_EQ(
        to_json(run.phases[0]).dump().find("\"switch_balance_logit\":0.0001") != std::string::npos,
        balanced);
    EXPECT_EQ(run.phases[0].data, "clusters-" + name.substr(0, name.find('/')));
  }
}

TEST(ShippedRuns, Figure3AndTable4AreOfGeneratedDataAndFiguresOfWeightsOfOneRun) {
  EXPECT_EQ(shipped_runs("clusters/figure3").size(), 4U);
  EXPECT_EQ(shipped_runs("clusters/table4").size(), 3U);
  EXPECT_EQ(activation(shipped_runs("clusters/figure4").at("cubic")), "cubic");
  EXPECT_EQ(activation(shipped_runs("clusters/figure5").at("linear")), "identity");
  const auto table4 = parse<RunsConfig>(load_experiment("clusters/table4", Scale::paper).config);
  EXPECT_EQ(paper_table(table4.paper, "cubic, seed 2", "dispatch")->rows[2][7], 2711);
}

}  // namespace
}  // namespace moesaic
