// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "moesaic/models/model.h"
#include "moesaic/train/run_plan.h"

namespace moesaic {

/// Returns inputs of so many images on the meta device.
at::Tensor meta_inputs(const Model& model, int64_t images);

/// Memory of a phase in bytes, without the process itself, its data, buffers within operators of
/// LibTorch and gaps in the heap.
struct TrainingMemory {
  double weights = 0.0, gradients = 0.0, optimizer = 0.0;
  double batches = 0.0;  ///< The batch that is trained on and those that are prepared ahead.
  /// What else a step holds at once at most, in float32: what backward needs and what it makes, or
  /// what an evaluation's forward pass holds, where that is more. Unset means unknown.
  std::optional<double> activations = 0.0;
  double buffers = 0.0;  ///< Of several processes: routing of others' tokens, rows under way.

  /// Returns the sum of what is known.
  double sum() const {
    return weights + gradients + optimizer + batches + activations.value_or(0.0) + buffers;
  }
};

/// Estimates the memory of a phase whose evaluations have batches of `evaluate_batch` images; 0:
/// there are none. `model` is the phase's network, or one of nearly the same shape, on the meta
/// device (build_model_shape()).
TrainingMemory training_memory(Model& model, const PhasePlan& phase, int64_t evaluate_batch = 0);

/// Returns what a step of `images` images at once holds at most, in bytes of float32, beside
/// parameters and gradients that lie there all the time, as processes that share a batch keep them;
/// nothing if it is unknown. `model` is as for training_memory().
std::optional<double> activation_memory(Model& model, const PhasePlan& phase, int64_t images);

/// Throws Error (usage), located at the model, if weights, gradients and optimizer state of a phase
/// exceed this machine's memory; activations are not counted.
void check_training_memory(const RunConfig& config, const Model& shape);

/// Returns a line of text for each phase that trains, for --dry-run. What this process has now, its
/// data among it, is added.
std::string describe_memory(Model& model, const RunConfig& config,
                            const std::vector<PhasePlan>& phases);

}  // namespace moesaic
