// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "moesaic/models/model.h"
#include "moesaic/parallel/group.h"

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
  /// Completes the gradients of shared experts after the pass.
  void finish();

  std::shared_ptr<const Processes> processes_;
  std::vector<at::Tensor> dense_, experts_;  ///< Parameters; experts_ are the shared ones.
  GradientReducer of_dense_, of_experts_;
};

}  // namespace moesaic
