// SPDX-License-Identifier: Apache-2.0
// What a gradient phase minimises, found by name. An objective is a file in src/train/objectives/
// with settings of its own.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "moesaic/base/registry.h"
#include "moesaic/config/schema.h"
#include "moesaic/data/loader.h"
#include "moesaic/models/model.h"

namespace moesaic {

class PhasePlaces;  // train/places.h

/// What is minimised, and what it is made of: float32 scalars on the network's device.
struct LossTerms {
  at::Tensor loss;
  /// Named numbers for the report: parts of the loss, unweighted, and what comes for free.
  std::vector<std::pair<std::string, at::Tensor>> terms = {};
};

class Objective {
 public:
  virtual ~Objective() = default;
  /// Runs the network on the batch, with what is random drawn from `random`, and returns what is to
  /// be minimised, ready for backward().
  virtual LossTerms operator()(Model& model, const Batch& batch,
                               const at::Generator& random) const = 0;
};

/// An entry of the registry.
struct ObjectiveKind {
  Choice settings;  ///< the name and the defaults of its settings
  /// Makes it for a network whose products run in `precision` (see Autocast).
  std::function<std::unique_ptr<Objective>(const Choice& settings, const Model& model,
                                           const std::string& precision)>
      make;
  /// Throws Error (usage) with the place of the setting to blame where it does not fit the network
  /// or the data.
  std::function<void(const Choice& settings, const PhasePlaces& places, const Model& model,
                     const DatasetInfo& data)>
      check;
};

/// softmax, sigmoid, softmax_twice, ensemble_softmax, ensemble_sigmoid
/// (train/classification_loss.h) for classes; squared for real-valued targets.
Registry<ObjectiveKind>& objectives();

/// Their settings, "softmax" first.
std::vector<Choice> objective_choices();

}  // namespace moesaic
