// SPDX-License-Identifier: Apache-2.0
// The kinds of phases that a run's configuration can name.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "moesaic/base/registry.h"
#include "moesaic/models/model.h"
#include "moesaic/train/datasets.h"
#include "moesaic/train/phase.h"
#include "moesaic/train/phase_config.h"
#include "moesaic/train/places.h"

namespace moesaic {

/// A phase worked out before anything is trained.
struct PhasePlan {
  PhaseConfig config;
  std::string precision = "float32";  ///< that of the run
  bool recompute = false;             ///< likewise
  int64_t outputs = 0;                ///< of the network in this phase: classes, or real targets
  int64_t images = 0;                 ///< in the training split
  int64_t batch = 0;                  ///< images that a step sees
  int64_t steps_per_epoch = 1;        ///< an incomplete last batch of an epoch is left out
  int64_t steps = 0;
  int64_t trained = 0;  ///< numbers that the phase trains, of what its entry leaves
};

/// What a phase needs to run.
struct PhaseContext {
  std::shared_ptr<Model> model;
  std::shared_ptr<const Dataset> data;  ///< the training split, preprocessed
  uint64_t seed = 0;                    ///< phase_seed()
  int64_t loader_threads = 0;
};

/// What a step of a phase keeps in memory.
struct StepMemory {
  double gradients = 0.0;  ///< bytes
  double optimizer = 0.0;  ///< bytes of the tensors that live from one update to the next
  int64_t parts = 1;       ///< parts that a batch goes through the network in
  std::string by = {};     ///< names of what updates the parameters, for messages
};

/// An entry of the registry.
struct PhaseKind {
  Choice settings;  ///< the kind's name and the defaults of its settings
  /// Fills in batch, steps_per_epoch and steps, once all else of the plan is there, and checks its
  /// settings against network and data. `data` and `model` have no numbers in a dry run. Throws
  /// Error (usage) with the place of the setting to blame.
  std::function<void(PhasePlan& plan, const PhasePlaces& places, const Model& model,
                     const Dataset& data)>
      plan;
  std::function<std::unique_ptr<Phase>(const PhasePlan& plan, PhaseContext context)> make;
  /// What it needs beside the network's weights; left out: nothing.
  std::function<StepMemory(const PhaseConfig& phase, const Model& model)> memory = {};
};

/// "gradient" (train/gradient_phase.h); others are added by their families.
Registry<PhaseKind>& phase_kinds();

}  // namespace moesaic
