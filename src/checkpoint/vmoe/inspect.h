// SPDX-License-Identifier: Apache-2.0
// What checkpoints of google-research/vmoe hold.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "moesaic/nn/module_state.h"

namespace moesaic {

/// Whether a path is PREFIX, PREFIX.index or one of its shards.
bool is_vmoe_checkpoint(const std::filesystem::path& path);

/// See inspect().
nlohmann::ordered_json inspect_vmoe(const std::filesystem::path& path);

/// All arrays of a checkpoint, as they are.
TensorMap stored_vmoe_arrays(const std::filesystem::path& path);

/// The parameters of a checkpoint, by the reference's names, float32.
TensorMap vmoe_arrays_of(const std::filesystem::path& path);
/// Those of a network here, under the same names; `model` is its configuration.
TensorMap vmoe_arrays_of(const nlohmann::ordered_json& model, TensorMap tensors,
                         const std::string& from);

}  // namespace moesaic
