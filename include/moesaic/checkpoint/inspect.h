// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "moesaic/base/filesystem.h"
#include "moesaic/base/registry.h"
#include "moesaic/nn/module_state.h"

namespace moesaic {

/// A kind of checkpoints of another project, which can be inspected and imported, but not loaded as
/// they are.
struct ForeignCheckpoint {
  std::string project;  ///< E.g. "google-research/vmoe".
  /// Import command without --out: "moesaic import vmoe --model-config FILE".
  std::string import_command;
  /// Returns whether a path names such a checkpoint or one of its files.
  std::function<bool(const fs::path&)> matches;
  /// Describes a checkpoint; see inspect().
  std::function<nlohmann::ordered_json(const fs::path&)> inspect;
  /// Returns all arrays as stored.
  std::function<TensorMap(const fs::path&)> load_stored;
  /// Returns the parameters under the project's names, as float32.
  std::function<TensorMap(const fs::path&)> parameters;
  /// Returns the parameters of a network of ours under the same names; `model` is its
  /// configuration.
  std::function<TensorMap(const nlohmann::ordered_json& model, TensorMap tensors,
                          const std::string& from)>
      convert;
};

/// Returns the registry of kinds.
Registry<ForeignCheckpoint>& foreign_checkpoints();

/// Returns the kind of a path's checkpoint, or nullptr if it is of no other project.
const ForeignCheckpoint* find_foreign(const fs::path& path);

/// Describes a run, a checkpoint, a .safetensors file or the index of several: {"path", "kind",
/// "parameters", "bytes" (of the tensors), "file_bytes", "tensors": [{"name", "dtype", "shape"}]}.
/// An index adds "files", their number; a checkpoint adds "model", "data", "classes", "state" and
/// the remaining experts of each MoE layer. A checkpoint of google-research/vmoe, given by its
/// prefix, also has "shards" and "version". Reads headers only and checks a checkpoint's files
/// against its manifest, its optimizer's size only. Throws Error if `path` cannot be read. `trust`
/// is LoadOptions'; the tensors of a file that needs it are read.
nlohmann::ordered_json inspect(const fs::path& path, bool trust = false);

/// Compares two paths: {"only_in_first", "only_in_second", "different_shape", "changed": [{"name",
/// "relative_change"}], "equal", "config": [{"key", "first", "second"}]}, where null is an absent
/// key. For the list of experts that pruning kept, an absent key means all experts, and the item
/// also has "absent": "all". A checkpoint of google-research/vmoe has its own names and dtypes; a
/// network compared with one is converted to those names and float32. The relative change of a
/// tensor is ||b - a|| / ||a||.
nlohmann::ordered_json inspect_difference(const fs::path& first, const fs::path& second,
                                          bool trust = false);

}  // namespace moesaic
