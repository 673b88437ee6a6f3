// SPDX-License-Identifier: Apache-2.0
// The phase kind "gradient": mini-batches, an objective, autograd and optimizers.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "moesaic/data/loader.h"
#include "moesaic/models/model.h"
#include "moesaic/parallel/group.h"
#include "moesaic/train/gradient_config.h"
#include "moesaic/train/objective.h"
#include "moesaic/train/optimizer.h"
#include "moesaic/train/phase.h"

namespace moesaic {

class Processes;  // parallel/processes.h

/// Gradients of the mean of the processes' losses: those of what every process has are the mean
/// over all processes, those of experts that a replica's processes share the sum over them and the
/// mean over the replicas, divided by their number.
class SharedGradients {
 public:
  /// Of the model's parameters that require gradients now.
  SharedGradients(const Model& model, std::shared_ptr<const Processes> processes);

  /// Runs the last backward pass of a step, which reduces the gradients. Throws LostProcess where
  /// another process does not take part.
  void backward(const at::Tensor& loss);
  /// Returns the norm of all gradients, those of other processes' experts among them.
  at::Tensor norm() const;

 private:
  std::shared_ptr<const Processes> processes_;
  std::vector<at::Tensor> dense_, experts_;  ///< Parameters; experts_ are the shared ones.
  GradientReducer of_dense_, of_experts_;
};

/// Values of a gradient phase's state.
struct GradientPhaseState {
  int64_t epoch = 0, batch = 0, updates = 0;
  std::optional<double> min_loss;
  bool stopped = false;
  std::vector<int64_t> replaced;
};
template <class Fields>
void describe(Fields& f, GradientPhaseState& c) {
  f("epoch", c.epoch, "epoch of the next batch, 0-based, per phase", at_least(0));
  f("batch", c.batch, "place of the next batch in its epoch, 0-based", at_least(0));
  f("updates", c.updates, "updates made by the phase's optimizers", at_least(0));
  f("min_loss", c.min_loss, "smallest loss of the phase's steps so far, where one may end it");
  f("stopped", c.stopped, "whether a step's loss has ended the phase");
  f("replaced", c.replaced, "damaged images that others stood for so far, sorted");
}

/// A phase of gradient descent. Its metrics are the loss, the objective's terms, and the norm of
/// the gradients before clipping.
class GradientPhase : public Phase {
 public:
  /// Sets requires_grad to false for parameters that the phase does not train.
  GradientPhase(const PhasePlan& plan, PhaseContext context);

  bool done() const override { return state_.stopped || optimizer_.updates() >= plan_.steps; }
  /// Loads a batch, runs forward and backward, then scales, clips and updates, unless the loss ends
  /// the phase. Where the loss or the gradient norm is not finite, the parameters and the
  /// optimizers' state keep their bits. On the CPU, and on every device where `stop` is set and
  /// needs the loss, this throws Diverged then; elsewhere the step reads no value of the device and
  /// leaves metrics and error to StepReport::late.
  StepReport step() override;
  int agree(int signal, const Processes* processes) override;
  /// Returns that the learning rate or the limit of the gradients should be lower, with both.
  std::string remedy() const override;
  PhaseState state() const override;
  void load(const PhaseState& state) override;

  const PhasePlan& plan() const { return plan_; }
  const Optimizer& optimizer() const { return optimizer_; }
  /// Returns the min loss of a step so far, where `stop` needs it.
  std::optional<double> min_loss() const { return state_.min_loss; }

 private:
  /// Named scalar tensors on the network's device.
  using Scalars = std::vector<std::pair<std::string, at::Tensor>>;

  /// Accumulates the gradients of a part times `fraction`; returns the part's loss and terms.
  /// The last part of a batch completes the gradients of all processes.
  Scalars accumulate(const Batch& part, const at::Generator& random, double fraction, bool last);
  Scalars accumulate(const Batch& batch);
  /// Returns a report whose metrics are late, and from this step on updates skip_ where they tell.
  StepReport report_of(const Scalars& scalars);
  /// Returns the learning rate of the next update.
  double rate(const ScheduleConfig& schedule, const OptimizerConfig& optimizer) const;
  bool ends_with(double loss);
  void advance(const Batch& batch);

  /// Returns the generator of this step's forward pass, a function of run, phase and step.
  at::Generator generator() const;

  PhasePlan plan_;
  const GradientConfig& config_;  ///< Part of plan_.
  uint64_t seed_;
  std::shared_ptr<Model> model_;
  std::shared_ptr<const Processes> processes_;  ///< Null: this one is alone.
  std::function<void()> before_update_;
  std::unique_ptr<Objective> objective_;
  Optimizer optimizer_;
  PatternValues gradient_scale_;
  bool read_late_;
  at::Tensor skip_;  ///< Float32 scalar: 1 once a step was not finite; undefined on the first one.
  DeviceLoader loader_;
  std::optional<SharedGradients> shared_;
  GradientPhaseState state_;
  std::map<int64_t, std::string> replaced_;  ///< Of the last batch, until agree().
};

/// Returns the registry's entry.
PhaseKind gradient_phase_kind();

/// Returns the parameters that `trains` selects. They, and no others, require gradients from now
/// on.
Optimizer::NamedParameters choose_parameters(Model& model, const PhaseConfig& phase);

}  // namespace moesaic
