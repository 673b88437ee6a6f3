// SPDX-License-Identifier: Apache-2.0
// The folder of an experiment: its settings, and the log of the runs that are made.
#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "base/support.h"
#include "moesaic/base/file.h"
#include "moesaic/report/runs.h"
#include "report/runs_fixture.h"
#include "support/matchers.h"

namespace moesaic {
namespace {

using report_test::kTwoRows;
using report_test::Runs;
using report_test::runs_config;

TEST_F(Runs, ADamagedLogIsKeptAsideAndWhatItLacksIsMadeAgain) {
  const RunsConfig config = runs_config(kTwoRows);
  const std::vector<MeasuredRow> first = run(config);
  const auto log = nlohmann::ordered_json::parse(read_text(folder_ / "out/runs.json"));
  const auto with = [&](const char* key, const char* entry) {
    auto changed = log;
    changed[key] = nlohmann::ordered_json::parse(entry);
    return changed.dump();
  };
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"{\"mixture#0\": ", "it is not a JSON object"},
      {"[1, 2]", "it is not a JSON object"},
      {with("mixture#1", "7"), "'mixture#1': run: must be an object, found the integer 7"},
      {with("mixture#1", R"({"final": {"step": 4, "numbers": {"steps": 4}}})"),
       "'mixture#1': it has no test_accuracy after 4 steps"},
      {with("single#1", R"({"final": {"step": 4, "numbers": {"steps": "many"}}})"),
       "'single#1': run: 'final.numbers.steps' must be a number, found the string \"many\""}};
  for (size_t i = 0; i < cases.size(); ++i) {
    write_atomic(folder_ / "out/runs.json", cases[i].first);
    std::vector<MeasuredRow> again;
    const std::string said = test::said_by([&] { again = run(config); });
    EXPECT_THAT(said, HasSubstr("runs.json: corrupt: " + cases[i].second +
                                "; it is kept as runs.json.damaged"));
    EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 1) << said;
    const std::string kept =
        i == 0 ? "runs.json.damaged" : fmt::format("runs.json.damaged-{}", i + 1);
    EXPECT_EQ(read_text(folder_ / "out" / kept), cases[i].first);
    for (size_t r = 0; r < first.size(); ++r) {
      for (size_t s = 0; s < first[r].runs.size(); ++s) {
        EXPECT_EQ(again[r].runs[s].final.numbers, first[r].runs[s].final.numbers);
      }
    }
  }
}

TEST_F(Runs, DamagedSnapshotsAreMadeAgain) {
  const RunsConfig config = runs_config(R"("rows": [{"name": "a", "num_runs": 1}],
      "snapshots": {"every": 2, "probes": ["dispatch"]})");
  run(config);
  const auto log = nlohmann::ordered_json::parse(read_text(folder_ / "out/runs.json"));
  using Json = nlohmann::ordered_json;
  const auto with = [&](const std::function<void(Json & snapshots)>& change) {
    Json changed = log;
    change(changed["a#0"]["snapshots"]);
    return changed.dump();
  };
  const std::vector<std::pair<std::string, std::string>> cases = {
      {with([](Json& snapshots) { snapshots = Json::array(); }), "it has no snapshots"},
      {with([](Json& snapshots) { snapshots[1]["tables"].erase("dispatch"); }),
       "it has no dispatch after 2 steps"},
      {with([](Json& snapshots) {
         snapshots[1]["tables"]["dispatch"] = {
             {"rows", {"r"}}, {"columns", {"c"}}, {"values", {{1}}}};
       }),
       "its tables of dispatch differ in rows or columns"},
      {with([](Json& snapshots) { snapshots.erase(snapshots.size() - 1); }),
       "its snapshots do not ascend to its last step, 5"}};
  for (const auto& [text, problem] : cases) {
    write_atomic(folder_ / "out/runs.json", text);
    std::vector<MeasuredRow> again;
    EXPECT_THAT(test::said_by([&] { again = run(config); }), HasSubstr("'a#0': " + problem));
    EXPECT_EQ(again[0].runs[0].snapshots.size(), log["a#0"]["snapshots"].size());
  }
}

TEST_F(Runs, RefusesOtherSettingsInAFolder) {
  run(runs_config(R"("rows": [{"name": "a", "num_runs": 1}])"));
  const auto other = [&](const std::string& rest) {
    return test::usage_of([&] { run(runs_config(rest)); });
  };
  EXPECT_THAT(other(R"("rows": [{"name": "a", "set": {"seed": 6}}])"),
              HasSubstr("was made with other settings: 'runs.a.seed' was 5 and is 6 now"));
  EXPECT_THAT(other(R"("rows": [{"name": "a"}], "probes": ["steps"],
                       "plots": [{"kind": "points", "metrics": ["steps"]}])"),
              HasSubstr("other settings"));
  write_atomic(folder_ / "out/config.json", "{\"runs\": ");
  EXPECT_THAT(other(R"("rows": [{"name": "a"}])"), HasSubstr("config.json: corrupt: not JSON"));
}

TEST_F(Runs, TakesAFolderThatLacksLaterSettings) {
  const auto with = [](const std::string& set) {
    return runs_config(R"("rows": [{"name": "a", "num_runs": 1, "set": {)" + set +
                       R"(}}], "snapshots": {"probes": ["entropy"]})");
  };
  const auto first = run(with(""));
  const std::filesystem::path file = folder_ / "out/config.json";
  const auto written = nlohmann::ordered_json::parse(read_text(file));
  auto older = written;
  older["runs"]["a"].erase("tf32");
  older["runs"]["a"]["phases"][0].erase("clip_norm");
  older["snapshots"].erase("by_epoch");
  write_atomic(file, older.dump());
  EXPECT_EQ(run(with(""))[0].runs[0].final.numbers, first[0].runs[0].final.numbers);
  EXPECT_EQ(nlohmann::ordered_json::parse(read_text(file)), written);
  write_atomic(file, older.dump());
  EXPECT_THAT(test::usage_of([&] { run(with(R"("tf32": true)")); }),
              HasSubstr("settings: 'runs.a.tf32' was false and is true now; set back"));
  EXPECT_EQ(run(with(R"("checkpoint_every": 7)"))[0].runs[0].final.numbers,
            first[0].runs[0].final.numbers);
  older["runs"]["a"]["phases"][0]["preprocess"].erase("orientation");
  write_atomic(file, older.dump());
  EXPECT_THAT(test::usage_of([&] { run(with("")); }),
              HasSubstr("preprocess.orientation' was \"stored\" and is \"data\" now"));
}

TEST_F(Runs, RecomputeDecidesWhereSecondsAreMeasured) {
  const auto with = [](const std::string& converged, const std::string& set) {
    return runs_config(R"("rows": [{"name": "a", "num_runs": 1, "set": {)" + set +
                       R"(}}], "snapshots": {"probes": ["test_accuracy"], "converged": [)" +
                       converged + "]}");
  };
  const std::string timed = R"("test_accuracy")", again = R"("activation_checkpointing": true)";
  run(with("", ""));
  run(with("", again));
  std::filesystem::remove_all(folder_ / "out");
  run(with(timed, ""));
  EXPECT_THAT(test::usage_of([&] { run(with(timed, again)); }),
              HasSubstr("settings: 'runs.a.activation_checkpointing' was false and is true now"));
  run(with(timed, R"("checkpoint_every": 7)"));
}

TEST_F(Runs, TakesWhatOtherProcessesOfAKilledCallMade) {
  const RunsConfig config = runs_config(kTwoRows);
  const auto first = run(config);
  const std::filesystem::path out = folder_ / "out";
  auto log = nlohmann::ordered_json::parse(read_text(out / "runs.json"));
  const auto give = [&](const char* run, const char* file) {
    log[run]["final"]["numbers"]["test_accuracy"] = 12.5;  // Made again, it would be another.
    write_atomic(out / file, nlohmann::ordered_json{{run, log[run]}}.dump() + "\n");
    log.erase(run);
  };
  give("mixture#1", "runs-1.json");
  give("single#0", "runs-5000.jsonl");
  const std::vector<std::string> others = {"runs-a.json", "runs-2.json.damaged", "runs-0.json",
                                           "runs-007.json", "runs-20261127.json"};
  for (const std::string& file : others) write_atomic(out / file, "{");
  write_atomic(out / "runs.json", log.dump());
  const auto again = run(config);
  EXPECT_EQ(again[0].runs[1].final.numbers.at("test_accuracy"), 12.5);
  EXPECT_EQ(again[1].runs[0].final.numbers.at("test_accuracy"), 12.5);
  EXPECT_EQ(again[0].runs[0].final.numbers, first[0].runs[0].final.numbers);
  for (const char* file : {"runs-1.json", "runs-5000.json", "runs-5000.jsonl"}) {
    EXPECT_FALSE(std::filesystem::exists(out / file)) << file;
  }
  for (const std::string& file : others) EXPECT_EQ(read_text(out / file), "{") << file;
}

TEST_F(Runs, OtherRowsMayJoinAFolder) {
  const std::string a = R"({"name": "a", "num_runs": 1})", b = R"({"name": "b", "num_runs": 1})";
  const auto rows = [](const std::string& list) { return runs_config("\"rows\": [" + list + "]"); };
  const auto first = run(rows(a)), other = run(rows(b));
  EXPECT_THAT(test::usage_of([&] { run(rows(R"({"name": "a", "set": {"seed": 6}})")); }),
              HasSubstr("'runs.a.seed' was 5 and is 6 now"));
  const auto both = run(rows(b + ", " + a));
  EXPECT_EQ(both[0].runs[0].final.numbers, other[0].runs[0].final.numbers);
  EXPECT_EQ(both[1].runs[0].final.numbers, first[0].runs[0].final.numbers);
}

TEST_F(Runs, OfAnotherExperimentNeverShareAFolder) {
  RunsConfig config = runs_config(R"("rows": [{"name": "a", "num_runs": 1}])");
  run(config);
  const std::filesystem::path file = folder_ / "out/config.json";
  auto older = nlohmann::ordered_json::parse(read_text(file));
  config = runs_config(R"("rows": [{"name": "b", "num_runs": 1}])");
  config.name = "other";
  EXPECT_THAT(test::usage_of([&] { run(config); }),
              HasSubstr("'experiment' was \"small\" and is \"other\" now"));
  older.erase("experiment");  // A version that did not say so made no other one.
  write_atomic(file, older.dump());
  EXPECT_EQ(run(config).size(), 1U);
}

}  // namespace
}  // namespace moesaic
