// SPDX-License-Identifier: Apache-2.0
// Checkpoints of other projects, which can be inspected and imported, but not loaded as they are.
#pragma once

#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "moesaic/base/registry.h"
#include "moesaic/nn/module_state.h"

namespace moesaic {

struct ForeignCheckpoint {
  std::string project;         ///< E.g. "google-research/vmoe".
  std::string import_command;  ///< E.g. "moesaic import vmoe".
  /// Returns whether a path names such a checkpoint or one of its files.
  std::function<bool(const std::filesystem::path&)> is_one;
  /// Describes a checkpoint; see inspect().
  std::function<nlohmann::ordered_json(const std::filesystem::path&)> inspect;
  /// Returns all arrays as stored.
  std::function<TensorMap(const std::filesystem::path&)> stored;
  /// Returns the parameters under the project's names, as float32.
  std::function<TensorMap(const std::filesystem::path&)> parameters;
  /// Returns the parameters of a network of ours under the same names; `model` is its
  /// configuration.
  std::function<TensorMap(const nlohmann::ordered_json& model, TensorMap tensors,
                          const std::string& from)>
      converted;
};

/// Returns the registry of kinds.
Registry<ForeignCheckpoint>& foreign_checkpoints();

/// Returns the kind of a path's checkpoint, or nullptr if it is of no other project.
const ForeignCheckpoint* find_foreign(const std::filesystem::path& path);

}  // namespace moesaic
