// SPDX-License-Identifier: Apache-2.0
// Runs of the papers' phases: in memory, refused, and continued after a kill.
#pragma once

#include <fmt/format.h>

#include <functional>

#include "moesaic/data/dataset.h"
#include "support/matchers.h"
#include "train/train_fixture.h"

namespace moesaic::train_test {

/// Trains without a folder.
inline std::shared_ptr<Model> train_in_memory(const RunConfig& config) {
  Trainer trainer(config, options_with_described(""));
  trainer.run();
  return trainer.model();
}

/// What a run of these settings is refused with, when they are read or before its first step.
inline std::string refusal_of(const std::function<RunConfig()>& config) {
  return error_of([&] { Trainer(config(), options_with_described("")); });
}

/// Writes a table of samples with one target, a tenth of them for tests, and returns its
/// description.
inline std::string write_table(const TempDir& folder, const DatasetInputs& samples) {
  const at::Tensor x = samples.values_NCHW.flatten(1), y = samples.targets_NK.flatten();
  std::string text;
  for (int64_t j = 0; j < x.size(1); ++j) text += fmt::format("x{},", j);
  text += "y\n";
  for (int64_t i = 0; i < x.size(0); ++i) {
    for (int64_t j = 0; j < x.size(1); ++j) text += fmt::format("{},", x[i][j].item<float>());
    text += fmt::format("{}\n", y[i].item<float>());
  }
  write_atomic(folder / "mine.csv", text);
  write_atomic(folder / "mine.json",
               R"({"name": "mine", "format": "table", "paths": ["./"],
                   "table": {"file": "mine.csv", "targets": ["y"], "test_fraction": 0.1}})");
  return (folder / "mine.json").string();
}

/// Expects the same bits in these files of a whole run and of runs that went on after `steps`, each
/// of which has a checkpoint where `all_saved`.
inline void expect_same_files(const RunConfig& config, const std::vector<int64_t>& steps,
                              const std::vector<std::string>& files, bool all_saved = false) {
  const TempDir folder;
  const fs::path whole = folder / "whole";
  Trainer(config, options_with_described(whole)).run();
  for (const int64_t step : steps) {
    SCOPED_TRACE(step);
    const std::string checkpoint = "checkpoints/step_" + std::to_string(step);
    ASSERT_TRUE(!all_saved || fs::exists(whole / checkpoint));
    const fs::path run = folder / ("from" + std::to_string(step));
    copy_killed_after(whole, step, run);
    Trainer(config, options_with_described(run, true)).run();
    for (const std::string& file : files) {
      EXPECT_EQ(read_text(whole / file), read_text(run / file)) << file;
    }
  }
}

/// The same of the last checkpoint, of step `last`, and of all metrics.
inline void expect_same_bits(const RunConfig& config, const std::vector<int64_t>& steps,
                             int64_t last) {
  const std::string checkpoint = "checkpoints/step_" + std::to_string(last);
  expect_same_files(
      config, steps,
      {checkpoint + "/model.safetensors", checkpoint + "/state.json", "metrics.jsonl"},
      /*all_saved=*/true);
}

}  // namespace moesaic::train_test
