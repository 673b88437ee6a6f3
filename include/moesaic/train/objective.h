// SPDX-License-Identifier: Apache-2.0
// Objectives, which gradient phases minimise, by name. Each is a file in src/train/objectives/ with
// its own settings.
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

/// A loss and its terms: float32 scalars on the network's device.
struct LossTerms {
  at::Tensor loss;
  /// Named values for the report: unweighted terms of the loss, and metrics that cost nothing.
  std::vector<std::pair<std::string, at::Tensor>> terms = {};
};

class Objective {
 public:
  virtual ~Objective() = default;
  /// Runs the network on the batch, with random numbers drawn from `random`, and returns the loss,
  /// ready for backward().
  virtual LossTerms operator()(Model& model, const Batch& batch,
                               const at::Generator& random) const = 0;
};

/// A registry entry of an objective.
struct ObjectiveKind {
  Choice settings;      ///< Name and default settings.
  std::string meaning;  ///< Description for lists of objectives.
  /// Makes the objective for a network whose matrix products run in `precision` (see Autocast).
  std::function<std::unique_ptr<Objective>(const Choice& settings, const Model& model,
                                           const std::string& precision)>
      make;
  /// Throws Error (usage) with the location of the setting if it does not fit the network or the
  /// data.
  std::function<void(const Choice& settings, const PhasePlaces& places, const Model& model,
                     const DatasetInfo& data)>
      check;
};

/// Returns softmax, sigmoid, softmax_twice, ensemble_softmax, ensemble_sigmoid
/// (train/classification_loss.h) and hinge for classes, and squared for real-valued targets.
Registry<ObjectiveKind>& objectives();

/// Returns the settings of all objectives, "softmax" first.
std::vector<Choice> objective_choices();

}  // namespace moesaic
