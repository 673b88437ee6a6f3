// SPDX-License-Identifier: Apache-2.0
// Runs whose steps are read while the next one runs, as on a GPU, write what others do.
#include <torch/torch.h>

#include "moesaic/train/gradient_phase.h"
#include "support/matchers.h"
#include "train/train_fixture.h"

namespace moesaic {
namespace {

using namespace train_test;  // NOLINT(google-build-using-namespace): the fixture of this folder

/// Registers gradient phases that read late, once.
void add_late_kind() {
  if (phase_kinds().find("late") != nullptr) return;
  PhaseKind kind = gradient_phase_kind();
  kind.settings = NamedSettings("late", GradientConfig{});
  kind.make = [](const PhasePlan& plan, PhaseContext context) -> std::unique_ptr<Phase> {
    context.defer_metrics = true;
    return std::make_unique<GradientPhase>(plan, std::move(context));
  };
  phase_kinds().add("late", std::move(kind));
}

class LateRun : public ::testing::Test {
 protected:
  LateRun() { add_late_kind(); }

  static std::vector<std::string> late(std::vector<std::string> changes) {
    for (const char* phase : {"0", "1", "3"}) {
      changes.insert(changes.begin(), "phases." + std::string(phase) + ".kind=late");
    }
    return changes;
  }

  const TempDir folder_;
};

TEST_F(LateRun, WritesTheSameBits) {
  for (const char* every : {"checkpoint_every=1", "checkpoint_every=4", "checkpoint_every=0"}) {
    const TempDir folder;
    const std::vector<std::string> changes = {every, "log_every=1"};
    train(folder / "run", changes);
    train(folder / "late", late(changes));
    expect_equal_bits(folder / "run", folder / "late");
  }
}

TEST_F(LateRun, GoesOnFromASignalInAnyStep) {
  const std::vector<std::string> changes = late({"checkpoint_every=0"});
  train(folder_ / "whole", changes);
  for (int step = 0; step < 6; ++step) {
    const TempDir folder;
    const RunConfig config = config_of(four_phases(), changes);
    EXPECT_EQ(train_until(config, options_for(folder / "run"), "train", 4 * step).steps, step + 1);
    train(folder / "run", changes, true);
    expect_equal_bits(folder_ / "whole", folder / "run");
  }
}

TEST_F(LateRun, NamesTheStepThatDivergedAndKeepsTheNetworkBeforeIt) {
  TensorMap before, after;
  const auto error_with = [&](std::vector<std::string> changes) {
    const TempDir folder;
    TrainerOptions options = options_for(folder / "run");
    std::shared_ptr<Model> trained;
    options.on_step = [&](Model& model, int64_t step) {
      const torch::NoGradGuard no_grad;
      at::Tensor bias = model.named_parameters()["head.bias"];
      if (step == 2) bias.fill_(NAN);
      if (step == 3) bias.fill_(0.25);  // Late runs come to this, others do not.
      TensorMap& now = step == 2 ? before : after;
      for (const auto& item : model.named_parameters()) {
        if (step >= 2) now[item.key()] = item.value().detach().clone();
      }
      return true;
    };
    changes.insert(changes.end(), {"checkpoint_every=0", "model.encoder.moe.layers=[]",
                                   "phases.2.on_entry={}", "phases.0.aux_losses={}"});
    return error_of([&] { Trainer(config_of(four_phases(), changes), options).run(); });
  };
  const std::string error = error_with({});
  EXPECT_THAT(error, StartsWith("failure: phase 'pretrain', step 3: training diverged: loss is "));
  EXPECT_TRUE(after.empty());
  EXPECT_EQ(error_with(late({})), error);
  ASSERT_FALSE(after.empty());
  for (const auto& [name, tensor] : before) {
    EXPECT_TRUE(name == "head.bias" || torch::equal(tensor, after.at(name))) << name;
  }
}

}  // namespace
}  // namespace moesaic
