// SPDX-License-Identifier: Apache-2.0
#include "support/toy_phase.h"

#include <torch/torch.h>

#include <algorithm>

#include "moesaic/base/pattern.h"
#include "moesaic/train/phase.h"

namespace moesaic::testing {
namespace {

class ShrinkPhase final : public Phase {
 public:
  ShrinkPhase(const PhasePlan& plan, PhaseContext context)
      : plan_(plan),
        config_(settings_of<ShrinkConfig>(plan_.config)),
        model_(std::move(context.model)) {}

  bool is_done() const override { return steps_done_ == plan_.steps; }

  StepReport step() override {
    const torch::NoGradGuard no_grad;
    const int64_t steps = std::min(config_.chunk_size, plan_.steps - steps_done_);
    double norm = 0.0;
    for (const std::string& name : trained()) {
      at::Tensor parameter = model_->named_parameters()[name];
      for (int64_t i = 0; i < steps; ++i) parameter.mul_(1.0 - config_.rate);
      norm += parameter.square().sum().item<double>();
    }
    steps_done_ += steps;
    return {.metrics = {{"squared_norm", norm}}, .images = steps, .steps = steps};
  }

  PhaseState state() const override {
    return {{{"made", steps_done_}}, {{"last", at::full({1}, steps_done_)}}};
  }
  void load(const PhaseState& state) override {
    steps_done_ = state.values.at("made");
    if (state.tensors.at("last").item<int64_t>() != steps_done_) fail("shrink: another state");
  }

 private:
  std::vector<std::string> trained() const {
    std::vector<std::string> names;
    const Patterns trains(plan_.config.trainable);
    for (const auto& item : model_->named_parameters()) {
      if (trains.any_matches(item.key())) names.push_back(item.key());
    }
    return names;
  }

  PhasePlan plan_;
  const ShrinkConfig& config_;
  std::shared_ptr<Model> model_;
  int64_t steps_done_ = 0;
};

}  // namespace

void add_shrink_phase() {
  if (phase_kinds().find("shrink") != nullptr) return;
  PhaseKind kind;
  kind.settings = NamedSettings("shrink", ShrinkConfig{});
  kind.description = "makes all weights smaller, for tests";
  kind.plan = [](PhasePlan& plan, const SettingLocations& locations, const Model&, const Dataset&) {
    if (!plan.config.steps) {
      fail_usage("{}: phase '{}': a shrink phase needs 'steps'", locations.find({"epochs"}),
                 plan.config.name);
    }
    plan.batch_size = 1;
    plan.steps = *plan.config.steps;
  };
  kind.make = [](const PhasePlan& plan, PhaseContext context) -> std::unique_ptr<Phase> {
    return std::make_unique<ShrinkPhase>(plan, std::move(context));
  };
  phase_kinds().add("shrink", std::move(kind));
}

}  // namespace moesaic::testing
