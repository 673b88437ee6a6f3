// SPDX-License-Identifier: Apache-2.0
// The phase kind "gradient": batches, an objective, autograd and optimizers.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "moesaic/data/loader.h"
#include "moesaic/train/gradient_config.h"
#include "moesaic/train/objective.h"
#include "moesaic/train/optimizer.h"
#include "moesaic/train/phase.h"
#include "moesaic/train/phase_kind.h"

namespace moesaic {

/// The values of a gradient phase's state.
struct GradientPhaseState {
  int64_t epoch = 0, batch = 0, updates = 0;
  std::optional<double> min_loss;
  bool stopped = false;
};
template <class Fields>
void describe(Fields& f, GradientPhaseState& c) {
  f("epoch", c.epoch, "epoch of the next batch, 0-based, per phase", at_least(0));
  f("batch", c.batch, "place of the next batch in its epoch, 0-based", at_least(0));
  f("updates", c.updates, "updates made by the phase's optimizers", at_least(0));
  f("min_loss", c.min_loss, "smallest loss of the phase's steps so far, where one may end it");
  f("stopped", c.stopped, "whether a step's loss has ended the phase");
}

/// Its metrics are the loss, the objective's terms, and the gradients' norm as clipping finds it.
class GradientPhase : public Phase {
 public:
  /// Parameters that the phase does not train stop requiring gradients.
  GradientPhase(const PhasePlan& plan, PhaseContext context);

  bool done() const override { return state_.stopped || optimizer_.updates() >= plan_.steps; }
  /// Makes batch, forward, backward, then scales, clips and updates, unless the loss ends the
  /// phase. Throws Error before the update where the loss or the gradients' norm is not finite.
  StepReport step() override;
  PhaseState state() const override;
  void load(const PhaseState& state) override;
  std::vector<std::string> parameters() const override;

  const PhasePlan& plan() const { return plan_; }
  const Optimizer& optimizer() const { return optimizer_; }
  /// The smallest loss of a step so far, where `stop` asks for it.
  std::optional<double> min_loss() const { return state_.min_loss; }

 private:
  /// Scalar tensors on the network's device.
  using Scalars = std::vector<std::pair<std::string, at::Tensor>>;

  /// Adds `fraction` of the part's gradients; returns the part's loss and terms.
  Scalars accumulate(const Batch& part, const at::Generator& random, double fraction);
  Scalars accumulate(const Batch& batch);
  StepReport read(const Scalars& scalars) const;
  bool ends_with(double loss);
  void advance(const Batch& batch);

  /// The generator of what is random in this step's forward pass: a function of run, phase and
  /// step.
  at::Generator generator() const;

  PhasePlan plan_;
  const GradientConfig& config_;  ///< within plan_
  uint64_t seed_;
  std::shared_ptr<Model> model_;
  std::unique_ptr<Objective> objective_;
  Optimizer optimizer_;
  PatternValues gradient_scale_;
  Loader loader_;
  GradientPhaseState state_;
};

/// For the registry.
PhaseKind gradient_phase_kind();

/// Bytes of the tensors that the phase's optimizers keep from one update to the next.
double optimizer_bytes(const Model& model, const PhaseConfig& phase);

}  // namespace moesaic
