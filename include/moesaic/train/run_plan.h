// SPDX-License-Identifier: Apache-2.0
// What a run will do, worked out and checked before anything is trained.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "moesaic/models/model.h"
#include "moesaic/train/datasets.h"
#include "moesaic/train/run_config.h"

namespace moesaic {

struct PhasePlan {
  PhaseConfig config;
  std::string precision = "float32";  ///< that of the run
  bool recompute = false;             ///< likewise
  int64_t classes = 0;                ///< of the network in this phase
  int64_t images = 0;                 ///< in the training split
  int64_t batches_per_epoch = 0;      ///< the last one of an epoch is left out where it is not full
  int64_t steps = 0;
  int64_t trained = 0;  ///< numbers that the phase trains, of what its entry leaves
};

/// Fits phases, network and data to one another, so that a run does not find out later. Throws
/// Error (usage) with the place of the setting to blame, e.g. for classes that differ without a new
/// head, images of another shape, a pattern that finds no parameter, a prune without its
/// pre-trained network. config.model is only asked for places, and best left as it was written.
std::vector<PhasePlan> plan_phases(const RunConfig& config, const Model& model, Datasets& datasets);

/// The network and the phases as a table for people, for --dry-run.
std::string describe_run(const RunConfig& config, const Model& model,
                         const std::vector<PhasePlan>& phases);

/// The network that the run starts with, initial values and all, by config.model or config.init;
/// `init` itself is loaded by load_initial_weights().
std::shared_ptr<Model> build_initial_model(const RunConfig& config);

/// The same on the meta device, see build_model_shape().
std::shared_ptr<Model> build_initial_shape(const RunConfig& config);

/// Throws Error (usage) where config.init is given and neither a run nor a checkpoint.
void check_init(const RunConfig& config);

/// Checks what load_initial_weights() would load, by its configuration and its files' hashes.
void check_initial_weights(const RunConfig& config);

/// Loads config.init strictly, if it is given; where the first phase gives a new head, the old one
/// may have another number of classes.
void load_initial_weights(const RunConfig& config, Model& model);

}  // namespace moesaic
