// SPDX-License-Identifier: Apache-2.0
// Experiments of small runs, those made in a folder of their own, and measured rows that are made
// up.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "base/support.h"
#include "moesaic/config/document.h"
#include "moesaic/report/experiment.h"
#include "moesaic/report/runs.h"

namespace moesaic::report_test {

/// Three runs a row of the clusters paper's mixtures that take a second; `rest` is what follows
/// "train".
inline std::string runs_text(const std::string& rest) {
  return R"({
    "name": "small", "kind": "runs", "description": "a test", "num_runs": 3,
    "train": {
      "name": "run", "seed": 5, "evaluate_batch_size": 16000,
      "model": {"name": "cluster-moe", "num_experts": 4, "num_filters": 4, "router": {}},
      "phases": [{"name": "train", "data": "clusters-setting3", "batch_size": 400, "steps": 5,
                  "loss": "softmax_twice",
                  "optimizer": {"name": "sgd", "lr": 0.1, "momentum": 0},
                  "optimizers": [{"parameters": ["experts"],
                                  "optimizer": {"name": "normalized_sgd", "lr": 0.001, "momentum": 0}}]}]
    },
    )" + rest +
         "}";
}

inline RunsConfig runs_config(const std::string& rest) {
  return parse<RunsConfig>(Document::from_text(runs_text(rest), "runs.json").root());
}

inline constexpr const char* kTwoRows = R"("rows": [{"name": "mixture"},
    {"name": "single", "num_runs": 2, "set": {"model.router": null, "model.num_experts": 1,
     "phases.0.optimizers": [], "phases.0.steps": 2}}])";

class Runs : public ::testing::Test {
 protected:
  std::vector<MeasuredRow> run(const RunsConfig& config) const {
    std::vector<MeasuredRow> rows;
    EXPECT_TRUE(measure_rows(config, {.out = folder_ / "out", .show_progress = false}, rows));
    return rows;
  }
  std::string refusal(const std::string& rest) const {
    const std::string error = test::usage_of([&] { run(runs_config(rest)); });
    EXPECT_FALSE(std::filesystem::exists(folder_ / "out")) << error;
    return error;
  }
  test::TempDir folder_;
};

inline MeasuredTable counts(double last) {
  return {{"cluster 1", "cluster 2"}, {"expert 1", "expert 2"}, {{1, 2}, {3, last}}};
}

/// A mixture of two runs with snapshots, and a single network of one run without a router.
inline std::vector<MeasuredRow> measured_rows() {
  const std::vector<Metric> metrics = {
      {"test_accuracy", "test accuracy, %"},
      {.name = "entropy", .label = "dispatch entropy, nats", .digits = 3},
      table_metric("dispatch", "training examples", 0),
      table_metric("expert_signal", "expert and signal", 3)};
  MeasuredRow mixture{"it's_a mixture", metrics, {}};
  for (const double accuracy : {90.0, 94.0}) {
    RunRecord run;
    for (const int64_t step : {0, 7}) {
      run.snapshots.push_back({step,
                               {{"entropy", accuracy / 100 - 0.1 * static_cast<double>(step)}},
                               {{"dispatch", counts(4)}, {"expert_signal", counts(0.125)}}});
    }
    run.final = {7,
                 {{"test_accuracy", accuracy}, {"entropy", 0.25}},
                 {{"dispatch", counts(14)}, {"expert_signal", counts(0.125)}}};
    mixture.runs.push_back(run);
  }
  MeasuredRow single{"single", {metrics[0]}, {{{5, {{"test_accuracy", 75.5}}, {}}, {}}}};
  return {mixture, single};
}

}  // namespace moesaic::report_test
