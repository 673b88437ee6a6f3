// SPDX-License-Identifier: Apache-2.0
#include "moesaic/report/run_table.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/support.h"
#include "moesaic/base/error.h"
#include "moesaic/base/file.h"
#include "moesaic/config/document.h"
#include "moesaic/data/catalog.h"
#include "moesaic/report/experiment.h"
#include "moesaic/report/reproduce.h"
#include "moesaic/report/run_table_report.h"
#include "report/memory_run.h"

namespace moesaic {
namespace {

using ::testing::HasSubstr;

/// Two rows of the clusters paper's networks that take a second.
std::string table_text(const std::string& rows) {
  return R"({
    "name": "small", "kind": "run-table", "description": "a test", "runs": 3,
    "train": {
      "name": "run", "seed": 5, "evaluate_batch_size": 16000,
      "model": {"name": "cluster-moe", "experts": 4, "filters": 4, "router": {}},
      "phases": [{"name": "train", "data": "clusters-setting3", "batch_size": 400, "steps": 4,
                  "loss": "softmax_twice", "optimizer": {"name": "sgd", "lr": 0.1, "momentum": 0},
                  "optimizers": [{"parameters": ["^moe.experts"],
                                  "optimizer": {"name": "normalized_sgd", "lr": 0.001, "momentum": 0}}]}]
    },
    "rows": [)" +
         rows + "]}";
}

const char* const kTwoRows =
    R"({"name": "mixture", "paper": {"test_accuracy": [99.0, 0.5]}},
       {"name": "single", "runs": 2, "set": {"model.router": null, "model.experts": 1,
        "phases.0.optimizers": [], "phases.0.steps": 2}})";

RunTableConfig parsed(const std::string& text) {
  return parse<RunTableConfig>(Document::from_text(text, "table.json").root());
}

class RunTable : public ::testing::Test {
 protected:
  RunTableOutcome run(const RunTableConfig& config) {
    RunTableOutcome outcome;
    ReproduceOptions options;
    options.out = folder_ / "out";
    options.progress = false;
    EXPECT_TRUE(run_run_table(config, options, outcome));
    return outcome;
  }
  test::TempDir folder_;
};

TEST_F(RunTable, EveryRunIsAFunctionOfItsSeedAndIsMadeOnce) {
  const RunTableConfig config = parsed(table_text(kTwoRows));
  const RunTableOutcome first = run(config);
  ASSERT_EQ(first.rows.size(), 2U);
  EXPECT_EQ(first.rows[0].runs.size(), 3U);
  EXPECT_EQ(first.rows[1].runs.size(), 2U);
  EXPECT_NE(first.rows[0].runs[0], first.rows[0].runs[1]);
  EXPECT_EQ(first.rows[0].runs[0].at("steps"), 4);
  EXPECT_EQ(first.rows[1].runs[0].at("steps"), 2);
  EXPECT_TRUE(first.rows[0].runs[0].contains("entropy"));
  EXPECT_FALSE(first.rows[1].runs[0].contains("entropy"));
  // Half of the log is taken away: what is left is used, the rest is made again, to the digit.
  auto log = nlohmann::json::parse(read_text(folder_ / "out/runs.json"));
  log.erase("mixture#1");
  log["mixture#0"]["test_accuracy"] = 12.5;
  write_atomic(folder_ / "out/runs.json", log.dump());
  const RunTableOutcome again = run(config);
  EXPECT_EQ(again.rows[0].runs[1], first.rows[0].runs[1]);
  EXPECT_EQ(again.rows[0].runs[0].at("test_accuracy"), 12.5);
}

TEST_F(RunTable, ADamagedLogIsKeptAsideAndWhatItLacksIsMadeAgain) {
  const RunTableConfig config = parsed(table_text(kTwoRows));
  const RunTableOutcome first = run(config);
  const auto log = nlohmann::ordered_json::parse(read_text(folder_ / "out/runs.json"));
  auto with = [&](const char* key, nlohmann::ordered_json entry) {
    auto changed = log;
    changed[key] = std::move(entry);
    return changed.dump();
  };
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"{\"mixture#0\": ", "it is no JSON object"},
      {"[1, 2]", "it is no JSON object"},
      {with("mixture#1", 7), "'mixture#1': it is no object of metrics"},
      {with("mixture#1", {{"steps", 4}}), "'mixture#1': it has no test_accuracy"},
      {with("single#1", {{"steps", 4}, {"test_accuracy", "high"}}),
       "'single#1': its test_accuracy is no number"}};
  for (size_t i = 0; i < cases.size(); ++i) {
    write_atomic(folder_ / "out/runs.json", cases[i].first);
    ::testing::internal::CaptureStderr();
    const RunTableOutcome again = run(config);
    const std::string said = ::testing::internal::GetCapturedStderr();
    EXPECT_THAT(said, HasSubstr((folder_ / "out/runs.json").string() + ": damaged: " +
                                cases[i].second + "; it is kept as runs.json.damaged"));
    EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 1) << said;
    const std::string kept =
        i == 0 ? "runs.json.damaged" : fmt::format("runs.json.damaged-{}", i + 1);
    EXPECT_EQ(read_text(folder_ / "out" / kept), cases[i].first);
    for (size_t r = 0; r < first.rows.size(); ++r)
      EXPECT_EQ(again.rows[r].runs, first.rows[r].runs);
  }
}

TEST_F(RunTable, RowsAreMeansAndSpreadsBesideThePapers) {
  const RunTableConfig config = parsed(table_text(kTwoRows));
  RunTableOutcome outcome;
  outcome.rows = {
      {"mixture", {{{"test_accuracy", 1.0}}, {{"test_accuracy", 2.0}}, {{"test_accuracy", 6.0}}}},
      {"single", {{{"test_accuracy", 4.0}}}}};
  const auto rows = run_table_rows(config, outcome);
  ASSERT_EQ(rows.size(), 2U);
  EXPECT_EQ(rows[0].measured, 3.0);
  EXPECT_NEAR(*rows[0].std, std::sqrt(14.0 / 3), 1e-12);
  EXPECT_EQ(rows[0].runs, 3);
  EXPECT_EQ(*rows[0].paper, 99.0);
  EXPECT_EQ(*rows[0].paper_std, 0.5);
  EXPECT_FALSE(rows[1].std || rows[1].paper);
  Results results;
  results.rows = rows;
  EXPECT_THAT(run_table_figure(results).script, HasSubstr("the paper''s"));
  results.rows = {rows[1]};
  EXPECT_THAT(run_table_figure(results).script, ::testing::Not(HasSubstr("the paper''s")));
}

TEST_F(RunTable, RefusesOtherSettingsInAFolderAndWrongRowsBeforeAnythingRuns) {
  run(parsed(table_text(kTwoRows)));
  RunTableConfig other = parsed(table_text(R"({"name": "mixture", "set": {"seed": 6}})"));
  EXPECT_THAT(test::usage_of([&] { run(other); }), HasSubstr("other settings"));
  write_atomic(folder_ / "out/config.json", "{\"mixture\": ");
  EXPECT_THAT(test::usage_of([&] { run(other); }), HasSubstr("config.json: damaged: not JSON"));
  const auto refused = [&](const std::string& rows) {
    return test::usage_of([&] {
      RunTableOutcome outcome;
      ReproduceOptions options;
      options.out = folder_ / "new";
      options.progress = false;
      run_run_table(parsed(table_text(rows)), options, outcome);
    });
  };
  EXPECT_THAT(refused(R"({"name": "a", "set": {"model.activation": "cubik"}})"),
              HasSubstr("cubic"));
  EXPECT_THAT(refused(R"({"name": "a"}, {"name": "a"})"), HasSubstr("two rows"));
  EXPECT_THAT(refused(R"({"name": "a", "paper": {"accuracy": [1]}})"), HasSubstr("test_accuracy"));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "new"));
}

TEST(RunTableExperiment, Table1HasAllItsRows) {
  const Experiment experiment = load_experiment("clusters/table1", Scale::paper);
  const auto config = parse<RunTableConfig>(experiment.config);
  EXPECT_EQ(config.rows.size(), 24U);
  EXPECT_EQ(config.runs, 10);
  const auto quick = parse<RunTableConfig>(load_experiment("clusters/table1", Scale::quick).config);
  EXPECT_LT(quick.runs, 10);
  EXPECT_GT(quick.max_steps, 0);
}

/// Every row of a shipped table, with its run checked as far as it can be without data.
std::map<std::string, RunConfig> runs_of_table(const std::string& name,
                                               Scale scale = Scale::paper) {
  const auto config = parse<RunTableConfig>(load_experiment(name, scale).config);
  std::map<std::string, RunConfig> rows;
  for (const RunTableRow& row : config.rows) {
    rows[row.name] = changed_run(config.train, row.set, config.max_steps);
    EXPECT_TRUE(row.paper.contains("test_accuracy")) << name << " " << row.name;
    for (const PhaseConfig& phase : rows[row.name].phases) {
      EXPECT_TRUE(load_dataset_spec(phase.data).generated()) << phase.data;
    }
  }
  return rows;
}

std::string experts_activation(const RunConfig& run) {
  return run.model.at("activation").as_string();
}

TEST(RunTableExperiment, Tables7And8AreSingleNetworksOfSixActivations) {
  const std::vector<std::pair<std::string, std::string>> activations = {
      {"linear", "identity"}, {"cubic", "cubic"}, {"relu", "relu"},
      {"celu", "celu"},       {"gelu", "gelu"},   {"tanh", "tanh"}};
  const auto table7 = runs_of_table("clusters/table7"), table8 = runs_of_table("clusters/table8");
  EXPECT_EQ(table7.size(), 6U);
  EXPECT_EQ(table8.size(), 12U);
  for (const auto& [name, activation] : activations) {
    for (const std::string place : {"", "setting1/", "setting2/"}) {
      const RunConfig& run = (place.empty() ? table7 : table8).at(place + name);
      EXPECT_EQ(experts_activation(run), activation);
      EXPECT_TRUE(run.model.at("router").is_null());
      const PhaseConfig& phase = run.phases.front();
      EXPECT_EQ(phase.data,
                "clusters-" + (place.empty() ? "table7" : place.substr(0, place.size() - 1)));
      EXPECT_EQ(phase.optimizer.lr, name == "linear" ? 0.001 : 0.01);
    }
  }
}

TEST(RunTableExperiment, Table9BalancesLinearMixturesAlone) {
  const auto rows = runs_of_table("clusters/table9");
  EXPECT_EQ(rows.size(), 8U);
  for (const auto& [name, run] : rows) {
    const bool balanced = name.ends_with("linear_balanced");
    EXPECT_EQ(experts_activation(run), balanced ? "identity" : "cubic");
    const std::map<std::string, double> wanted = {{"switch_balance_logit", 1e-4}};
    EXPECT_EQ(run.phases.front().aux_losses, balanced ? wanted : (std::map<std::string, double>{}));
    EXPECT_EQ(run.phases.front().data, "clusters-" + name.substr(0, name.find('/')));
  }
}

}  // namespace
}  // namespace moesaic
