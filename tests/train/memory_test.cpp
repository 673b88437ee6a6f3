// SPDX-License-Identifier: Apache-2.0
#include "moesaic/train/run_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <filesystem>

#include "moesaic/base/path.h"
#include "moesaic/config/document.h"
#include "moesaic/models/registry.h"
#include "moesaic/train/gradient_phase.h"
#include "train/train_fixture.h"

namespace moesaic {
namespace {

using train_test::config_of;
using train_test::error_of;
using train_test::four_phases;

struct Planned {
  RunConfig config;
  std::shared_ptr<Model> model;
  std::vector<PhasePlan> phases;

  explicit Planned(const std::vector<std::string>& changes = {})
      : config(config_of(four_phases(), changes)) {
    model = build_initial_meta_model(config);
    DatasetCache datasets(train_test::open_tiny);
    phases = plan_phases(config, *model, datasets);
  }
  TrainingMemory of_phase(size_t index) const { return training_memory(*model, phases[index]); }
};

TEST(TrainingMemory, CountsWhatAPhaseHolds) {
  const Planned planned;
  const double weights = 4.0 * static_cast<double>(planned.model->num_parameters());
  const TrainingMemory adam = planned.of_phase(0), sgd = planned.of_phase(1);
  EXPECT_EQ(adam.weights, weights);
  EXPECT_EQ(adam.gradients, weights);
  EXPECT_EQ(adam.optimizer, 2 * weights);
  EXPECT_EQ(sgd.optimizer, weights);
  EXPECT_EQ(adam.batches, 3.0 * 4 * 16 * 4);  // two ahead and one in use, of 4 images of 16 pixels
  EXPECT_EQ(adam.sum(), 4 * weights + adam.batches + adam.activations.value());
  const TrainingMemory none = planned.of_phase(2);
  EXPECT_EQ(none.sum(), weights);
}

TEST(TrainingMemory, FrozenParametersHaveGradientsAndNoMemory) {
  const Planned all, partly({"phases.0.frozen=[\"head\"]", "phases.1.trainable=[\"head\"]"});
  const double head = 4.0 * 3 * (8 + 1);
  EXPECT_EQ(partly.of_phase(0).gradients, all.of_phase(0).gradients);
  EXPECT_EQ(partly.of_phase(0).optimizer, all.of_phase(0).optimizer - 2 * head);
  EXPECT_EQ(partly.of_phase(1).gradients, head);
}

TEST(TrainingMemory, EachOptimizerCountsForWhatItMoves) {
  // The first phase has adamw, two tensors a parameter; the first part that finds one moves it.
  const Planned all,
      parts(
          {"phases.0.optimizers=[{\"parameters\": [\"^head\"], \"optimizer\": {\"name\": \"sgd\"}},"
           "{\"parameters\": [\"^head\\\\.weight\", \"router\"], \"optimizer\": "
           "{\"name\": \"sgd\", \"momentum\": 0}}]"});
  const double head = 4.0 * 3 * (8 + 1), router = 4.0 * 4 * 8;
  EXPECT_EQ(parts.of_phase(0).gradients, all.of_phase(0).gradients);
  EXPECT_EQ(parts.of_phase(0).optimizer, all.of_phase(0).optimizer - head - 2 * router);
}

TEST(TrainingMemory, ActivationsAreThoseOfAPart) {
  const double whole = Planned({"phases.0.batch_size=18"}).of_phase(0).activations.value();
  const double part = Planned({"phases.0.batch_size=18", "phases.0.gradient_accumulation_steps=9"})
                          .of_phase(0)
                          .activations.value();
  EXPECT_GT(whole, 2.5 * part);
  // Of 18 images at least the 5 tokens of width 8 that each of the 2 blocks takes and gives.
  EXPECT_GT(whole, 4.0 * 18 * 5 * 8 * 4);
  EXPECT_LT(whole, 4.0 * 18 * 5 * 8 * 200);
}

TEST(TrainingMemory, FollowsWhatAStepHoldsAtOnce) {
  const std::vector<std::string> large = {"phases.0.batch_size=18", "model.encoder.num_layers=12"};
  std::vector<std::string> recomputed = large;
  recomputed.emplace_back("activation_checkpointing=true");
  const double kept = Planned(large).of_phase(0).activations.value();
  const double again = Planned(recomputed).of_phase(0).activations.value();
  EXPECT_LT(again, 0.6 * kept);  // the input of each block, and one block
  const Planned planned;
  const auto of_batch = [&](int64_t images) {
    return training_memory(*planned.model, planned.phases[0], images).activations.value();
  };
  EXPECT_EQ(of_batch(1), planned.of_phase(0).activations.value());
  EXPECT_GT(of_batch(10000), 1e4 * 4 * 16);  // An evaluation may need more than a step.
}

TEST(TrainingMemory, IsALineForEachPhaseThatTrains) {
  const Planned planned;
  const std::string text = describe_memory(*planned.model, planned.config, planned.phases);
  EXPECT_THAT(text, ::testing::StartsWith("memory        pretrain: about "));
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 3);
}

TEST(TrainingMemory, ThatNoMachineHasIsRefusedByItsBatch) {
  Planned planned;
  check_step_memory(*planned.model, planned.phases);
  planned.phases[0].batch_size = int64_t{1} << 27;
  EXPECT_THAT(error_of([&] { check_step_memory(*planned.model, planned.phases); }),
              ::testing::StartsWith("usage: phases.pretrain.batch_size: a step of 134217728 images "
                                    "needs about "));
}

// An operator that LibTorch has no shape function for would leave a gap.
TEST(TrainingMemory, IsKnownOfEveryRecipe) {
  int phases = 0;
  for (const auto& family : std::filesystem::directory_iterator(resource("models"))) {
    const std::filesystem::path folder = family.path() / "recipes";
    if (!std::filesystem::is_directory(folder)) continue;
    for (const auto& file : std::filesystem::directory_iterator(folder)) {
      const RunConfig run = parse<RunConfig>(Document::from_file(file.path()).root());
      const auto model = build_initial_meta_model(run);
      for (const PhaseConfig& phase : run.phases) {
        const auto* const gradient = phase.kind.find<GradientConfig>();
        if (gradient == nullptr) continue;
        const GradientConfig& config = *gradient;
        const PhasePlan plan{.config = phase, .batch_size = config.batch_size, .steps = 1};
        const std::optional<double> found = training_memory(*model, plan).activations;
        // A block takes and gives a float32 token at least.
        const double min =
            2.0 * 4 * static_cast<double>(config.batch_size / config.gradient_accumulation_steps) *
            static_cast<double>(model->tokens_per_image());
        EXPECT_GT(found.value_or(0.0), min) << file.path() << ", " << phase.name;
        ++phases;
      }
    }
  }
  EXPECT_GE(phases, 7);
}

TEST(InitialShape, IsCheckedAgainstTheCheckpointItStartsFrom) {
  const test::TempDir folder;
  train_test::train(folder / "run");
  const auto check = [&](const std::vector<std::string>& changes) {
    std::vector<std::string> all = {"init=" + (folder / "run/checkpoints/pretrain").string()};
    all.insert(all.end(), changes.begin(), changes.end());
    const RunConfig config = config_of(four_phases(), all);
    return error_of([&] { check_initial_weights(config, *build_initial_meta_model(config)); });
  };
  EXPECT_EQ(check({}), "no error");
  EXPECT_EQ(check({"model=null"}), "no error");
  EXPECT_EQ(check({"model.num_classes=2", "phases.0.on_entry.new_head=true"}), "no error");
  EXPECT_EQ(check({"model.image_size=8"}), "no error");
  EXPECT_THAT(check({"model.num_classes=2"}), ::testing::HasSubstr("head"));
  EXPECT_THAT(check({"model.hidden_size=16"}), ::testing::HasSubstr("16"));
}

}  // namespace
}  // namespace moesaic
