// SPDX-License-Identifier: Apache-2.0
// Inspection of checkpoints of google-research/vmoe.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "moesaic/nn/module_state.h"

namespace moesaic {

/// Returns whether a path is PREFIX, PREFIX.index or one of its shards.
bool is_vmoe_checkpoint(const std::filesystem::path& path);

/// Describes a checkpoint of google-research/vmoe; see inspect().
nlohmann::ordered_json inspect_vmoe(const std::filesystem::path& path);

/// Returns all arrays of a checkpoint as stored.
TensorMap stored_vmoe_arrays(const std::filesystem::path& path);

/// Returns the parameters of a checkpoint under the reference's names, as float32.
TensorMap vmoe_arrays_of(const std::filesystem::path& path);
/// Returns the parameters of a network of ours under the same names; `model` is its configuration.
TensorMap vmoe_arrays_of(const nlohmann::ordered_json& model, TensorMap tensors,
                         const std::string& from);

}  // namespace moesaic
