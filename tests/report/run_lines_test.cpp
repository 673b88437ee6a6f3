// SPDX-License-Identifier: Apache-2.0
// The files in which an experiment keeps its finished runs.
#include <ATen/Parallel.h>

#include <algorithm>

#include "base/support.h"
#include "moesaic/base/file.h"
#include "moesaic/report/experiment.h"
#include "moesaic/report/probe.h"
#include "report/runs_fixture.h"
#include "support/matchers.h"

namespace moesaic {
namespace {

using report_test::runs_config;

const char* const kFiveRuns =
    R"("rows": [{"name": "mixture"}, {"name": "short", "num_runs": 2, "set": {"phases.0.steps": 2}}])";

class RunLines : public report_test::Runs {};

// As after a kill: lines that are not in the file yet, the last of them cut, and a corrupt one.
TEST_F(RunLines, FinishedRunsAreLinesUntilTheExperimentEnds) {
  const RunsConfig config = runs_config(kFiveRuns);
  run(config);
  EXPECT_FALSE(std::filesystem::exists(folder_ / "out/runs.jsonl"));
  auto log = nlohmann::ordered_json::parse(read_text(folder_ / "out/runs.json"));
  log["short#0"]["final"]["numbers"]["test_accuracy"] = 12.5;  // It is not made again.
  const std::string whole = log.dump(1) + "\n";
  const auto line = [&](const std::string& key) {
    nlohmann::ordered_json one = {{key, log[key]}};
    log.erase(key);
    return "\n" + one.dump();
  };
  std::string lines = line("mixture#1") + line("short#0") + "\n{\"mixture#2\": 7}";
  log.erase("mixture#2");
  const std::string cut = line("short#1");
  lines += cut.substr(0, cut.size() / 2);
  write_atomic(folder_ / "out/runs.jsonl", lines);
  write_atomic(folder_ / "out/runs.json", log.dump());
  run(config);
  EXPECT_EQ(read_text(folder_ / "out/runs.json"), whole);
  EXPECT_FALSE(std::filesystem::exists(folder_ / "out/runs.jsonl"));
  EXPECT_EQ(read_text(folder_ / "out/runs.jsonl.damaged"), lines);
}

/// Lines of runs that are finished, -1 where they are in one file already: registered once for this
/// program, for a folder that a test chooses.
std::filesystem::path& counted_folder() {
  static std::filesystem::path folder;
  if (probes().find("finished") != nullptr) return folder;
  probes().add("finished",
               {.description = "number of finished runs",
                .metrics =
                    [](const Model&, const DataSplits&) {
                      return std::vector<Metric>{
                          {.name = "finished", .label = "finished runs", .digits = 0}};
                    },
                .measure =
                    [](ProbedModel&, Measurement& measurement) {
                      double& count = measurement.numbers["finished"] = -1;
                      const std::filesystem::path lines = folder / "runs.jsonl";
                      if (std::filesystem::exists(folder / "runs.json")) return;
                      const bool none = !std::filesystem::exists(lines);
                      const std::string text = none ? "" : read_text(lines);
                      count = static_cast<double>(std::count(text.begin(), text.end(), '\n'));
                    }});
  return folder;
}

TEST_F(RunLines, AFinishedRunIsWrittenWithoutTheOthers) {
  counted_folder() = folder_ / "out";
  const int threads = at::get_num_threads();
  at::set_num_threads(1);  // One run at a time.
  const auto rows =
      run(runs_config(std::string(kFiveRuns) + R"(, "probes": ["test_accuracy", "finished"])"));
  at::set_num_threads(threads);
  std::vector<double> finished;
  for (const MeasuredRow& row : rows) {
    for (const RunRecord& one : row.runs) finished.push_back(one.final.numbers.at("finished"));
  }
  EXPECT_THAT(finished, ElementsAre(0, 1, 2, 3, 4));
}

}  // namespace
}  // namespace moesaic
