// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include "moesaic/models/model.h"

namespace moesaic {

/// The exponential moving average of a network's weights, as timm's ModelEmaV2, in float32:
///
///     average <- decay average + (1 - decay) weights
///
/// of the parameters that require gradients and of buffers of real numbers. The average begins as
/// the weights.
class WeightAverage {
 public:
  /// With a `decay` of 0 nothing is averaged: the calls below do nothing.
  WeightAverage(const Model& model, double decay);

  /// Takes the weights after a step into the average.
  void update();
  /// Exchanges the network's weights and their average.
  void swap();
  /// Gives the network the average.
  void apply() const;

  /// Adds the average to the tensors of a checkpoint, as "<name>.ema".
  void save(TensorMap& tensors) const;
  /// Restores a copy of what save() added, and removes it from `tensors`. Throws Error that names a
  /// tensor that is missing or of another shape.
  void load(TensorMap& tensors);

 private:
  double decay_;
  std::vector<std::string> names_;
  std::vector<at::Tensor> weights_, averages_;
};

}  // namespace moesaic
