// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "moesaic/models/model.h"
#include "moesaic/train/run_plan.h"

namespace moesaic {

/// Memory of a phase in bytes, without prefetched batches, buffers within operators and the process
/// itself.
struct TrainingMemory {
  double weights = 0.0, gradients = 0.0, optimizer = 0.0;
  /// All tensors that a forward pass of one part of a batch makes, in float32, as if backward
  /// needed every one: an upper bound. Unset means unknown.
  std::optional<double> activations = 0.0;

  /// Returns the sum of what is known.
  double sum() const { return weights + gradients + optimizer + activations.value_or(0.0); }
};

/// Estimates the memory of a phase. `model` is the phase's network, or one of nearly the same
/// shape, on the meta device (build_model_shape()).
TrainingMemory training_memory(Model& model, const PhasePlan& phase);

/// Throws Error (usage), located at the model, if weights, gradients and optimizer state of a phase
/// exceed this machine's memory; activations are not counted.
void check_training_memory(const RunConfig& config, const Model& shape);

/// Returns the bytes of all tensors of model.forward() for so many images, which also checks
/// shapes; nothing where LibTorch lacks the meta kernel of an operator. Throws Error where shapes
/// do not fit.
std::optional<double> activation_bytes(Model& model, int64_t images);

/// Returns a line of text for each phase that trains, for --dry-run.
std::string describe_memory(Model& model, const std::vector<PhasePlan>& phases);

}  // namespace moesaic
