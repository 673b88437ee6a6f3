// SPDX-License-Identifier: Apache-2.0
// Imports checkpoints of google-research/vmoe.
#pragma once

#include "moesaic/base/filesystem.h"
#include "moesaic/config/rules.h"
#include "moesaic/data/preprocess.h"

namespace moesaic {

/// What import_vmoe() reads, and what it makes of it.
struct ImportVMoEOptions {
  fs::path prefix;                     ///< PREFIX of PREFIX.index, PREFIX.data-*.
  fs::path model_config;               ///< JSON, names as the reference's or ours; "": `model`.
  Json model = {};                     ///< Content of such a file; null: by arrays.
  fs::path out;                        ///< Output directory, absent or empty.
  std::optional<int64_t> num_classes;  ///< Classes of a new head of zeros.
  std::optional<Size2d> image_size;    ///< New image size.
  fs::path rules;                      ///< JSON, [[pattern, replacement, ...], ...]; "": derived.
  uint64_t seed = 0;                   ///< Seed of the fresh random values.
  /// Called with the bytes done and the total; may throw to cancel, which leaves no output.
  std::function<void(uint64_t done, uint64_t total)> progress = {};
};

/// What import_vmoe() wrote.
struct ImportVMoEResult {
  std::string from, out;
  Json model;  ///< Configuration of the network.
  int64_t num_parameters = 0, num_arrays = 0, num_shards = 0;
  std::string branch;            ///< Branch of a train state with the parameters.
  int64_t num_other_arrays = 0;  ///< Number of arrays outside the branch.
  int64_t num_copied = 0;        ///< Number of arrays copied unchanged.
  std::vector<std::string> transformed, fresh, dropped;
  std::vector<std::string> unused;  ///< Settings of the model config without use here.
  std::vector<std::string> notes;   ///< Deviations from the given configuration.
  PreprocessConfig preprocess;      ///< Image preprocessing, for evaluation and export.
};

/// Writes a checkpoint of the network that the arrays and the configuration describe. Everything is
/// checked before anything is written; a failure leaves no output. Tensors are converted and
/// written one at a time, in float32; "array_dtypes" of the new config.json has the dtypes of
/// copied arrays that were not float32, for the export. Peak memory is two tensors, and a third as
/// it is stored if that is not float32, plus the whole network if values other than those of a head
/// are fresh. Throws Error: usage for a configuration that does not fit the arrays, failure for
/// invalid files.
ImportVMoEResult import_vmoe(const ImportVMoEOptions& options);

/// A checkpoint that google-research/vmoe released.
struct ReleasedCheckpoint {
  std::string name;
  std::string about;  ///< The network, and what it was trained on.
  std::string licence;
  int64_t bytes = 0;  ///< Size of its parameters.
};
/// Returns the checkpoints of checkpoints/released.json.
std::vector<ReleasedCheckpoint> released_checkpoints();

/// If `options.prefix` is the name of a released checkpoint, and not of files here: fetches its
/// files, unless they are in the cache, and sets prefix, model and image size where the options
/// leave them open. Throws Error: usage, with the nearest name, for one that is neither released
/// nor here, and for addresses; failure that says where the files may be put by hand.
void fetch_released(ImportVMoEOptions& options);

/// Returns the result as `moesaic import --json` prints it.
Json to_json(const ImportVMoEResult& result);
/// Returns the result as `moesaic import` prints it.
std::string describe(const ImportVMoEResult& result);

}  // namespace moesaic
