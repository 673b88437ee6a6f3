// SPDX-License-Identifier: Apache-2.0
// One phase of a run while it runs: what the Trainer knows of it. Kinds of phases are registered in
// train/phase_kind.h.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "moesaic/checkpoint/tensors.h"

namespace moesaic {

/// What a step has to tell.
struct StepReport {
  std::map<std::string, double> metrics;  ///< named numbers, e.g. loss and its terms
  std::optional<double> lr;               ///< learning rate, where there is one
  int64_t images = 0;                     ///< examples that the step saw
  /// Steps that were made: one for an update, more for a block of them, none where the step ended
  /// the phase instead.
  int64_t steps = 1;
};

/// Everything that a phase's later steps depend on beside the network's parameters.
struct PhaseState {
  nlohmann::ordered_json values = nlohmann::ordered_json::object();
  TensorMap tensors = {};
};

class Phase {
 public:
  virtual ~Phase() = default;

  /// Whether there is no step left to make.
  virtual bool done() const = 0;
  /// Makes a step, or a block of steps. Throws Error before the network changes where its numbers
  /// are no longer finite.
  virtual StepReport step() = 0;

  virtual PhaseState state() const = 0;
  /// Goes on from what state() gave, with the same bits. Throws Error for what state() cannot have
  /// given.
  virtual void load(const PhaseState& state) = 0;

  /// Names of the parameters that it moves.
  virtual std::vector<std::string> parameters() const = 0;
};

/// The seed of everything random in one phase of a run.
uint64_t phase_seed(int64_t run_seed, int64_t phase_index);

}  // namespace moesaic
