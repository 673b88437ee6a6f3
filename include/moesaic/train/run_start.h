// SPDX-License-Identifier: Apache-2.0
// The network that a run begins with.
#pragma once

#include <memory>

#include "moesaic/models/model.h"
#include "moesaic/train/run_config.h"

namespace moesaic {

/// The network of config.model, or where that is null of config.init, on the meta device: shapes
/// without numbers (build_model_shape()).
std::shared_ptr<Model> build_initial_shape(const RunConfig& config);

/// The network with the values that the first step begins with: those of config.init, which is read
/// once, or else initial ones by config.seed. Where config.model differs from the network of `init`
/// as its family allows it in fine-tuning, or the first phase gives a new head, the rest is taken.
/// Throws Error for what does not fit.
std::shared_ptr<Model> build_initial_model(const RunConfig& config);

/// Throws Error (usage) where config.init is given and neither a run nor a checkpoint.
void check_init(const RunConfig& config);

/// Checks what build_initial_model() would load, by its configuration and its files' hashes.
void check_initial_weights(const RunConfig& config);

}  // namespace moesaic
