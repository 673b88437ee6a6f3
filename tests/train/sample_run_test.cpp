// SPDX-License-Identifier: Apache-2.0
// Phases that see a sample of their data.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "moesaic/data/views.h"
#include "train/train_fixture.h"

namespace moesaic {
namespace {

using train_test::config_of;

/// Trains on 9 of 18 images, drawn by the phase or given as they are; returns all parameters.
at::Tensor trained_on_sample(uint64_t seed, bool by_phase) {
  const std::string recipe = std::string(R"({"name": "sampled", "model": )") + train_test::kModel +
                             R"(, "phases": [{"name": "p", "data": "three",
      "batch_size": 3, "epochs": 4, "evaluate": false, "aux_losses": {}}]})";
  std::vector<std::string> changes = {"seed=" + std::to_string(seed)};
  if (by_phase) changes.emplace_back("phases.0.num_samples=9");
  TrainerOptions options = train_test::options_for("");
  options.open = [&](std::string_view name, std::string_view split) {
    auto data = train_test::open_tiny(name, split);
    return by_phase || split != "train" ? data : make_sample(data, 9, seed);
  };
  Trainer trainer(config_of(recipe, changes), options);
  EXPECT_EQ(trainer.run().steps, 12);
  std::vector<at::Tensor> values;
  for (const at::Tensor& parameter : trainer.model()->parameters()) {
    values.push_back(parameter.detach().flatten());
  }
  return torch::cat(values);
}

TEST(SampleRun, TrainsOnTheSampleOfTheRunsSeed) {
  EXPECT_TRUE(at::equal(trained_on_sample(5, true), trained_on_sample(5, false)));
}

TEST(SampleRun, GoesOnWithTheSameBits) {
  const test::TempDir folder;
  const std::vector<std::string> changes = {"phases.0.num_samples=9", "checkpoint_every=2"};
  train_test::train(folder / "whole", changes);
  train_test::copy_killed_after(folder / "whole", 2, folder / "again");
  train_test::train(folder / "again", changes, true);
  train_test::expect_equal_bits(folder / "whole", folder / "again");
}

}  // namespace
}  // namespace moesaic
