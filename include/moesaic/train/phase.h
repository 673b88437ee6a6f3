// SPDX-License-Identifier: Apache-2.0
// One phase while it runs: its data, its optimizer, and the update of a batch.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "moesaic/data/loader.h"
#include "moesaic/models/model.h"
#include "moesaic/train/objective.h"
#include "moesaic/train/optimizer.h"
#include "moesaic/train/run_plan.h"
#include "moesaic/train/train_state.h"

namespace moesaic {

/// What an update has to tell: loss, its terms, accuracy in % and the gradients' norm as clipping
/// finds it.
struct StepReport {
  std::map<std::string, double> metrics;
  double lr = 0.0;
  int64_t images = 0;
  int64_t epoch = 0, batch = 0;  ///< of the next batch
  bool ends = false;             ///< the loss has ended the phase: no update was made
};

class Phase {
 public:
  /// Begins where `state` says. Parameters that the phase does not train stop requiring gradients.
  Phase(const PhasePlan& plan, std::shared_ptr<Model> model, std::shared_ptr<const Dataset> data,
        uint64_t seed, int64_t loader_threads, const TrainState& state);

  const PhasePlan& plan() const { return plan_; }
  Optimizer& optimizer() { return optimizer_; }
  const Optimizer& optimizer() const { return optimizer_; }
  bool done() const { return ended_ || optimizer_.updates() >= plan_.steps; }
  /// The least loss of a step so far, where `stop` asks for it.
  std::optional<double> min_loss() const { return min_loss_; }

  /// Batch, forward, backward, then scale, clip, update, unless the loss ends the phase. Throws
  /// Error before the update where the loss or the gradients' norm is not finite.
  StepReport step();

 private:
  /// Scalar tensors on the network's device.
  using Scalars = std::vector<std::pair<std::string, at::Tensor>>;

  /// Adds `share` of the part's gradients; returns the part's loss, accuracy and terms.
  Scalars accumulate(const Batch& part, const at::Generator& random, double fraction);
  Scalars accumulate(const Batch& batch);
  StepReport read(const Scalars& scalars, const Batch& batch) const;
  bool ends_with(double loss);

  /// Of what is random in this step's forward pass: a function of run, phase and step.
  at::Generator generator() const;

  PhasePlan plan_;
  uint64_t seed_;
  std::shared_ptr<Model> model_;
  ObjectiveOptions objective_;
  Optimizer optimizer_;
  PatternValues gradient_scale_;
  Loader loader_;
  std::optional<double> min_loss_;
  bool ended_ = false;
};

/// A seed for the data order of one phase.
uint64_t phase_seed(int64_t run_seed, int64_t phase_index);

}  // namespace moesaic
