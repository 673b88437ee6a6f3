// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "moesaic/models/model.h"
#include "moesaic/train/run_plan.h"

namespace moesaic {

/// What a phase needs, bytes. Batches that wait, buffers within operators and what the process
/// itself takes are not counted.
struct TrainingMemory {
  double weights = 0.0, gradients = 0.0, optimizer = 0.0;
  /// All tensors that a forward pass of one part of a batch makes, in float32, as though the
  /// backward pass needed every one: more than is really held at once. Absent: not known.
  std::optional<double> activations = 0.0;

  /// Of what is known.
  double sum() const { return weights + gradients + optimizer + activations.value_or(0.0); }
};

/// `model`: on the meta device, see build_model_shape(); the phase's network, or one much like it.
TrainingMemory training_memory(Model& model, const PhasePlan& phase);

/// Throws Error (usage), at the place of the model, where weights, gradients and optimizers of a
/// phase are more than this machine has; what a step needs besides is not counted.
void check_training_memory(const RunConfig& config, const Model& shape);

/// Bytes of the tensors that model.forward() makes of so many images, which also checks all shapes.
/// Nothing where LibTorch lacks the shape function of an operator. Throws Error where they do not
/// fit together.
std::optional<double> activation_bytes(Model& model, int64_t images);

/// A line for each phase that trains, for --dry-run.
std::string describe_memory(Model& model, const std::vector<PhasePlan>& phases);

}  // namespace moesaic
