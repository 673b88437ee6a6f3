// SPDX-License-Identifier: Apache-2.0
// A sweep over images in memory that takes a second, and numbers for reports.
#pragma once

#include <string>
#include <vector>

#include "moesaic/report/experiment.h"
#include "moesaic/report/prune_sweep.h"
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
    const uint64_t shade = 80 / (classes - 1) * (i % classes) + rng.below(130);
    for (int64_t p = 0; p < 16; ++p) pixels.push_back(static_cast<uint8_t>(shade + rng.below(25)));
  }
  return make_memory_dataset(info, pixels, labels);
}

/// A network of four experts, top-2, pruned to 3 and 2.
inline std::string tiny_sweep() {
  return std::string(R"({
  "name": "tiny",
  "kind": "prune-sweep",
  "description": "Two quarters.",
  "train": {
    "name": "tiny", "seed": 5, "checkpoint_every": 0, "evaluate_every": 0, "evaluate_batch_size": 20,
    "loader_threads": 0,
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
  "throughput": {"batch_size": 4, "rounds": 2},
  "export": {"keep": 2, "criterion": "router-norm-change"},
  "quick": {"keep": [4, 2], "recover.steps": 1, "train.phases.pretrain.steps": 2}
})";
}

inline SweepPoint point(int64_t keep, const std::string& criterion, double accuracy,
                        double recovered, int64_t parameters, double flops, double speed) {
  return {sweep_size(keep), criterion, {accuracy}, {recovered},
          parameters,       {flops},   speed,      4 * parameters};
}

/// Eight and four experts of eight, by two criteria.
inline SweepOutcome outcome() {
  SweepOutcome outcome;
  outcome.experts = 8;
  outcome.phases = {{"pretrain", "fashion", 10000, {88.125}}, {"finetune", "shoes", 3000, {96.5}}};
  outcome.sizes = {{"keep8", 8, "8 of 8"}, {"keep4", 4, "4 of 8"}};
  outcome.criteria = {"router-norm-change", "random"};
  outcome.points = {point(8, "router-norm-change", 96.5, 96.75, 1500000, 20e6, 4000.0),
                    point(8, "random", 96.5, 96.75, 1500000, 20e6, 4000.0),
                    point(4, "router-norm-change", 93.25, 96.25, 900000, 15e6, 5000.0),
                    point(4, "random", 71.0, 95.0, 900000, 12e6, 6400.0)};
  outcome.exported = SweepExport{{4, "router-norm-change"}, "model.ts.pt", 1.125};
  return outcome;
}

/// The same with a choice by layer that has as many experts as four of eight.
inline SweepOutcome outcome_with_choice() {
  SweepOutcome sweep = outcome();
  sweep.sizes.push_back({"first_whole", 0, "first_whole (8, 2)"});
  for (const std::string& criterion : sweep.criteria) {
    sweep.points.push_back(point(4, criterion, 94.5, 96.5, 1000000, 16e6, 5000.0));
    sweep.points.back().size = "first_whole";
  }
  return sweep;
}

inline Experiment experiment(Scale scale = Scale::paper) {
  return {.name = "demo",
          .kind = "prune-sweep",
          .description = "What pruning costs.",
          .scale = scale,
          .overrides = {},
          .config = Value()};
}

}  // namespace moesaic::report_test
