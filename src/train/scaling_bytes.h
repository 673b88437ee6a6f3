// SPDX-License-Identifier: Apache-2.0
// What a network's step moves, before it is known how fast.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "moesaic/train/scaling.h"

namespace moesaic {

/// Bytes of what all processes hold alike, and of what those that share the experts divide.
struct SplitBytes {
  double dense = 0.0, experts = 0.0;

  double of_process(const ProcessMesh& mesh) const {
    return dense + experts / static_cast<double>(mesh.experts);
  }
  /// Returns the same where experts that nobody shares are held alike by all processes, whose
  /// optimizer's state ZeRO-1 divides with the rest.
  SplitBytes held_alike(const ProcessMesh& mesh) const {
    return mesh.experts == 1 ? SplitBytes{.dense = dense + experts} : *this;
  }
};

/// Returns the bytes of the parameters that `counts` accepts by name.
SplitBytes parameter_bytes(const Model& model,
                           const std::function<bool(const std::string&)>& counts);
/// Returns the bytes of the gradients that the phase computes.
SplitBytes gradient_bytes(const Model& model, const PhaseConfig& phase);
/// Returns the bytes of the phase's optimizer state.
SplitBytes optimizer_state_bytes(const Model& model, const PhaseConfig& phase);

/// Bytes of the optimizer's state that a process keeps and of the parameters that it updates.
struct UpdateBytes {
  double state = 0.0, updated = 0.0;
};
/// Returns the most that a process has of each. ZeRO-1 divides what all processes hold alike, whole
/// tensors to each.
UpdateBytes update_bytes(const Model& model, const PhaseConfig& phase, const ProcessMesh& mesh);

/// Numbers that a MoE layer routes and sends for one image.
struct RoutedLayer {
  double logits = 0.0;   ///< Tokens times experts.
  double rows = 0.0;     ///< Expected rows, without dropped ones.
  double there = 0.0;    ///< Numbers that go to the processes which share the experts.
  double back = 0.0;     ///< Numbers that come back from them.
  bool learns = true;    ///< Whether what goes there has gradients: images have none.
  double experts = 0.0;  ///< Number of experts that are present.
  bool alone = false;    ///< Whether a process routes its own tokens alone.
  bool noisy = false;    ///< Whether noise is drawn for the tokens.
};

/// Returns the layers that the phase's batches go through in such processes.
std::vector<RoutedLayer> routed_layers(Model& model, const PhasePlan& phase,
                                       const ProcessMesh& mesh);

/// Returns the parts that a batch is split into.
int64_t parts_of_batch(const PhasePlan& phase);

/// Returns the bytes of a number in a row on its way to an expert.
double row_number_bytes(const PhasePlan& phase);

}  // namespace moesaic
