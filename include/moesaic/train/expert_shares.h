// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "moesaic/base/pattern.h"
#include "moesaic/checkpoint/save.h"
#include "moesaic/checkpoint/tensors.h"
#include "moesaic/models/model.h"

namespace moesaic {

class Processes;  // parallel/processes.h

/// Returns whether `trains` picks the same parameters of all experts of each layer that have names
/// of their own: otherwise some processes that share them would wait for gradients of others.
bool trains_experts_alike(const Model& model, const Patterns& trains);

/// Leaves each process its share of the experts of every MoE layer, see
/// nn::MoELayerImpl::share_experts().
void share_experts(Model& model, const std::shared_ptr<const Processes>& processes);

/// Gives every process all experts again.
void gather_experts(Model& model);

/// Knows which tensors of a network, and of an optimizer of its parameters, are those of this
/// process' experts, or their rows.
class ExpertShares {
 public:
  explicit ExpertShares(const Model& model);

  /// Returns whether this process has a share of the tensor: of a parameter, a buffer or, with
  /// their names at the front, a slot of the optimizer.
  bool has(const std::string& name) const;
  /// Returns what this process stores of tensors of the model and of a phase: its slices of shared
  /// experts, once among the replicas, the optimizer's state that it alone has, and in process 0
  /// everything else.
  CheckpointPart part(const CheckpointPart& all, const Processes& processes,
                      bool optimizer_is_shared) const;
  /// Returns the tensors that this process has of all, with its rows of stacked ones.
  TensorMap own(TensorMap tensors) const;

 private:
  std::shared_ptr<const Processes> processes_;  ///< Null where nothing is shared.
  // Beginnings of names:
  std::vector<std::string> stacked_;  ///< Of layers whose experts are rows of their tensors.
  std::vector<std::string> named_;    ///< Of layers whose experts have names of their own.
  std::vector<std::string> own_;      ///< Of such experts that this process has.
};

}  // namespace moesaic
