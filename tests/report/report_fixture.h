// SPDX-License-Identifier: Apache-2.0
// A sweep over images in memory that takes a second, and numbers for reports.
#pragma once

#include <string>
#include <vector>

#include "moesaic/report/experiment.h"
#include "moesaic/report/runs.h"
#include "train/train_fixture.h"

namespace moesaic::report_test {

using train_test::error_of;
using train_test::TempDir;

/// "three" and "two" shades of grey that overlap, so that no network is right about all of them: 48
/// images to train and 60 to test.
inline std::shared_ptr<const Dataset> open_tiny(std::string_view name, std::string_view split) {
  if (name != "three" && name != "two") fail_usage("unknown dataset '{}'", name);
  const uint64_t classes = name == "three" ? 3 : 2;
  DatasetInfo info{std::string(name), std::string(split), "", {}, 1, 4, 4, {0.5}, {0.3}};
  for (uint64_t c = 0; c < classes; ++c) info.classes.push_back("shade " + std::to_string(c));
  CounterRng rng(split == "train" ? 3 : 4, stream_id(name), 0);
  std::vector<uint8_t> pixels, labels;
  for (uint64_t i = 0; i < (split == "train" ? 48u : 60u); ++i) {
    labels.push_back(static_cast<uint8_t>(i % classes));
    const uint64_t shade = 80 / (classes - 1) * (i % classes) + rng.randint(130);
    for (int64_t p = 0; p < 16; ++p)
      pixels.push_back(static_cast<uint8_t>(shade + rng.randint(25)));
  }
  return make_memory_dataset(info, pixels, labels);
}

/// A network of four experts, top-2, pruned to 3 and 2.
inline std::string tiny_sweep() {
  return std::string(R"({
  "name": "tiny",
  "kind": "runs", "num_runs": 1,
  "description": "Two quarters.",
  "train": {
    "name": "tiny", "seed": 5, "checkpoint_every": 0, "evaluate_every": 0, "evaluate_batch_size": 20,
    "num_loader_threads": 0,
    "model": )") +
         train_test::kModel + R"(,
    "phases": [
      {"name": "pretrain", "data": "three", "batch_size": 6, "steps": 30,
       "optimizer": {"name": "adamw", "lr": 0.02}},
      {"name": "finetune", "data": "two", "batch_size": 6, "steps": 20,
       "optimizer": {"name": "adamw", "lr": 0.01}, "on_entry": {"new_head": true}}
    ]
  },
  "keep": [4, 3, 2],
  "criteria": ["router-norm-change", "random"],
  "recover": {"name": "recover", "data": "two", "batch_size": 6, "steps": 3,
              "optimizer": {"name": "adamw", "lr": 0.1}},
  "throughput": {"batch_size": 4, "num_rounds": 2},
  "export": {"num_experts": 2, "criterion": "router-norm-change"},
  "quick": {"keep": [4, 2], "recover.steps": 1, "train.phases.pretrain.steps": 2}
})";
}

/// A plan, and rows as a sweep measures them.
struct MadeSweep {
  SweepPlan plan;
  std::vector<MeasuredRow> rows = {};

  void add(const std::string& name, bool network, std::map<std::string, double> numbers) {
    RunRecord run;
    run.final.numbers = std::move(numbers);
    rows.push_back({name, sweep_metrics(network), {std::move(run)}});
  }
  void add_network(const std::string& row, double accuracy, double recovered, double parameters,
                   double flops, double speed) {
    add(row, true,
        {{"accuracy", accuracy},
         {"accuracy_recovered", recovered},
         {"parameters", parameters},
         {"flops", flops},
         {"capacity_flops", flops + 5e6},
         {"images_per_second", speed},
         {"bytes", 4 * parameters}});
  }

  Results results(Scale scale = Scale::paper) const {
    std::vector<MeasuredRow> all = rows;
    if (plan.exported) {
      RunRecord run;
      run.final.numbers = {{"forward_time_ratio", 1.125}};
      all.push_back({"export", {{"forward_time_ratio", "ratio"}}, {std::move(run)}});
    }
    add_savings(plan, all);
    return {.experiment = "demo",
            .scale = std::string(scale_name(scale)),
            .rows = runs_results({}, all),
            .seconds = 301.4};
  }
};

/// Eight and four experts of eight, by two criteria.
inline MadeSweep made_sweep() {
  MadeSweep made{.plan = {.num_experts = 8,
                          .phases = {{"pretrain", "fashion", 10000}, {"finetune", "shoes", 3000}},
                          .sizes = {{"keep8", 8, "8 of 8"}, {"keep4", 4, "4 of 8"}},
                          .criteria = {"router-norm-change", "random"},
                          .plotted = {"router-norm-change", "random"},
                          .exported = ExportChoice{4, "router-norm-change"}}};
  made.add("pretrain", false, {{"test_accuracy", 88.125}});
  made.add("finetune", false, {{"test_accuracy", 96.5}});
  made.add_network("keep8/router-norm-change", 96.5, 96.75, 1500000, 20e6, 4000.0);
  made.add_network("keep8/random", 96.5, 96.75, 1500000, 20e6, 4000.0);
  made.add_network("keep4/router-norm-change", 93.25, 96.25, 900000, 15e6, 5000.0);
  made.add_network("keep4/random", 71.0, 95.0, 900000, 12e6, 6400.0);
  return made;
}

/// The same with a choice by layer that has as many experts as four of eight.
inline MadeSweep made_with_choice() {
  MadeSweep made = made_sweep();
  made.plan.sizes.push_back({"first_whole", 0, "first_whole (8, 2)"});
  for (const std::string& criterion : made.plan.criteria) {
    made.add_network("first_whole/" + criterion, 94.5, 96.5, 1000000, 16e6, 5000.0);
  }
  return made;
}

/// The same with a second run, whose accuracies are larger by these.
inline MadeSweep with_second_run(MadeSweep made, double trained, double pruned, double recovered) {
  for (MeasuredRow& row : made.rows) {
    row.runs.push_back(row.runs[0]);
    std::map<std::string, double>& numbers = row.runs[1].final.numbers;
    for (const auto& [metric, more] :
         {std::pair("test_accuracy", trained), std::pair("accuracy", pruned),
          std::pair("accuracy_recovered", recovered)}) {
      if (numbers.contains(metric)) numbers[metric] += more;
    }
    for (const char* metric : {"parameters", "capacity_flops", "images_per_second", "bytes"}) {
      numbers.erase(metric);
    }
  }
  return made;
}

inline Experiment experiment(Scale scale = Scale::paper) {
  return {.name = "demo",
          .kind = "runs",
          .description = "What pruning costs.",
          .scale = scale,
          .overrides = {},
          .config = Value()};
}

}  // namespace moesaic::report_test
