// SPDX-License-Identifier: Apache-2.0
// Checkpoints: folders that are either whole or not there.
//
//   model.safetensors      parameters and buffers of the model, by name
//   optimizer.safetensors  the optimizer's tensors; absent where there are none
//   state.json             where the run stands: step, phase, place in the data, random states
//   config.json            {"format", "version", "model", "data", "classes", "run"}: rebuilds it
//   MANIFEST.json          size and SHA-256 of each of the others; written last
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "moesaic/checkpoint/tensors.h"
#include "moesaic/config/document.h"
#include "moesaic/config/value.h"

namespace moesaic {

class Model;

struct Checkpoint {
  nlohmann::ordered_json config;  ///< at least "model"; saving adds "format" and "version"
  nlohmann::ordered_json state;
  TensorMap model;
  TensorMap optimizer;
  std::filesystem::path folder = {};  ///< that it was read from
};

struct LoadOptions {
  bool verify = true;     ///< compare SHA-256, not only sizes
  bool optimizer = true;  ///< read optimizer.safetensors too
};

/// A JSON file of a run or a checkpoint, with places for messages. It stands for itself: what a
/// stranger's file `extends` is not read.
Document stored_document(const std::filesystem::path& path);

/// Writes a checkpoint beside its place, syncs it and moves it there; an older one in that place is
/// replaced in one step.
void save_checkpoint(const std::filesystem::path& folder, const Checkpoint& checkpoint);

/// The same for a network that is not held as a whole: `write_model` makes model.safetensors, at
/// the path it is given.
void save_checkpoint(const std::filesystem::path& folder, const Checkpoint& checkpoint,
                     const std::function<void(const std::filesystem::path&)>& write_model);

/// Reads a checkpoint folder. Throws Error(failure) with the file, what was expected and what was
/// found: MANIFEST.json missing or of an unknown version, a file missing, longer, shorter or
/// altered.
Checkpoint load_checkpoint(const std::filesystem::path& folder, const LoadOptions& options = {});

/// The same of a run or a checkpoint. A checkpoint folder gives itself. A run folder, or its
/// checkpoints/, gives the step_N with the largest N that is whole; broken ones are passed over
/// with a warning. Every file is hashed and read once, and the optimizer's not at all where it is
/// not asked for. Throws Error: usage for a path that is neither, failure when none is whole.
Checkpoint load_newest_checkpoint(const std::filesystem::path& run_or_checkpoint,
                                  const LoadOptions& options = {});

/// Only the checks of load_checkpoint.
void verify_checkpoint(const std::filesystem::path& folder);

/// The folder that load_newest_checkpoint() would read: a checkpoint itself, unverified, or the
/// newest whole one of a run.
std::filesystem::path resolve_checkpoint(const std::filesystem::path& run_or_checkpoint);

/// N of a folder that is named step_N, as the checkpoints of a run are by step_name(N).
std::optional<int64_t> step_of(const std::filesystem::path& folder);
std::string step_name(int64_t step);

/// Deletes the older step_N folders in a run's checkpoints/, so that the newest `keep` complete
/// ones remain. Call it once a new one is in place. Nothing else in the folder is touched. `keep`
/// is at least 1.
void prune_old_checkpoints(const std::filesystem::path& checkpoints, int64_t keep);

/// Builds the model that `config` describes and loads `tensors`, read from `from`, strictly. A
/// config that means far more numbers than there are is refused before anything is built. Throws
/// Error.
std::shared_ptr<Model> model_of(const Value& config, const TensorMap& tensors,
                                const std::string& from);

/// Builds the model of a loaded checkpoint; its tensors must be finite.
std::shared_ptr<Model> model_of(const Checkpoint& checkpoint);

/// Builds the model that a checkpoint's config.json describes and loads its tensors strictly, which
/// must be finite.
std::shared_ptr<Model> load_model(const std::filesystem::path& run_or_checkpoint);

}  // namespace moesaic
