// SPDX-License-Identifier: Apache-2.0
// The interface of a phase, through which the Trainer runs it. Kinds of phases are registered in
// train/phase_kind.h.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "moesaic/base/error.h"
#include "moesaic/checkpoint/tensors.h"
#include "moesaic/ops/diverged.h"

namespace moesaic {

/// Report of a step.
struct StepReport {
  std::map<std::string, double> metrics;  ///< Means over the steps, e.g. of the loss and its terms.
  std::optional<double> lr;               ///< Learning rate, where there is one.
  int64_t images = 0;                     ///< Number of examples of the step.
  /// Number of steps made: 1 for an update, more for a block of steps, 0 where the phase ended
  /// instead.
  int64_t steps = 1;
  /// Defined where a device may still compute the metrics, which are empty then: waits for them and
  /// returns them. Throws Diverged where they are not finite; the network is then as it was before
  /// this step, whatever steps followed.
  std::function<std::map<std::string, double>()> late = {};
};

/// Returns whether the steps after `before`, up to `after`, reach a multiple of `every`, where 0
/// has none: a block of steps may jump over it.
inline bool passes_multiple(int64_t before, int64_t after, int64_t every) {
  return every > 0 && after / every > before / every;
}

/// All that later steps of a phase depend on, apart from the network's parameters.
struct PhaseState {
  nlohmann::ordered_json values = nlohmann::ordered_json::object();
  TensorMap tensors = {};
};

class Processes;

class Phase {
 public:
  virtual ~Phase() = default;

  /// Returns whether the phase has no step left.
  virtual bool done() const = 0;
  /// Makes a step, or a block of steps. Throws Diverged, before the network changes, where values
  /// are not finite, or leaves that to StepReport::late.
  virtual StepReport step() = 0;
  /// Ends a step: several processes tell each other what only one of them has met. All call it,
  /// with null where this one is alone. Returns the largest `signal` of all.
  virtual int agree(int signal, const Processes* processes);
  /// Returns what to change where training diverges, as the end of a message; "" if nothing is
  /// known.
  virtual std::string remedy() const { return {}; }

  virtual PhaseState state() const = 0;
  /// Restores a result of state(), after which the phase continues with the same bits. Throws Error
  /// for an invalid state.
  virtual void load(const PhaseState& state) = 0;
};

/// Returns the seed of all random numbers of one phase of a run.
uint64_t phase_seed(int64_t run_seed, int64_t phase_index);

}  // namespace moesaic
