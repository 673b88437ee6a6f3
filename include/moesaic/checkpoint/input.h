// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "moesaic/checkpoint/store.h"
#include "moesaic/data/input_spec.h"
#include "moesaic/models/model.h"

namespace moesaic {

/// Key of config.json under which a checkpoint has its InputSpec.
inline constexpr const char* kInputKey = "input";

/// Returns how a checkpoint's network takes images. Checkpoints of version 0.2.0 and before do not
/// store it: mean and std are then those of the data's description, if it is still there, and a
/// warning says so. Throws Error (failure) where what is stored is out of range or does not fit
/// `model`, the checkpoint's network.
InputSpec input_spec_of(const Checkpoint& checkpoint, const Model& model);

/// Returns the names of the outputs of a checkpoint's network, in order; none where they are not
/// stored.
std::vector<std::string> class_names_of(const Checkpoint& checkpoint);
/// Returns the same of a run's newest checkpoint, or of a checkpoint, without a look at its hashes.
std::vector<std::string> class_names_of(const std::filesystem::path& run_or_checkpoint);

}  // namespace moesaic
