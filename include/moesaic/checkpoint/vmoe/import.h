// SPDX-License-Identifier: Apache-2.0
// Checkpoints of google-research/vmoe become checkpoints here.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "moesaic/config/sides.h"
#include "moesaic/data/preprocess.h"

namespace moesaic {

struct ImportVMoEOptions {
  std::filesystem::path prefix;        ///< of PREFIX.index and PREFIX.data-nnnnn-of-NNNNN
  std::filesystem::path model_config;  ///< see vmoe_model_config(); "": what the arrays tell
  std::filesystem::path out;           ///< the new checkpoint's folder, absent or empty
  std::optional<int64_t> classes;      ///< another head, of zeros, for so many
  std::optional<Sides> image_size;     ///< for images of another size
  std::filesystem::path rules;         ///< see rules_from_value(); "": by the two above
  uint64_t seed = 0;                   ///< of what begins with random values
  /// Is told how many bytes of all are done; may throw to stop, then nothing is left.
  std::function<void(uint64_t done, uint64_t total)> progress = {};
};

struct ImportVMoEResult {
  std::string from, out;
  nlohmann::ordered_json model;  ///< the network's configuration
  int64_t parameters = 0, arrays = 0, shards = 0;
  std::string branch;  ///< of a train state that had the parameters
  int64_t others = 0;  ///< arrays outside of it
  int64_t copied = 0;  ///< arrays that are as they were
  std::vector<std::string> transformed, fresh, dropped;
  std::vector<std::string> unused;  ///< settings of the model's configuration
  std::vector<std::string> notes;   ///< what was set otherwise than the configuration says
  PreprocessConfig preprocess;      ///< of images, for evaluation and export
};

/// Writes a checkpoint of the network that the arrays and the configuration mean. All is checked
/// before anything is written, and nothing is left of what fails. Tensors are made and written one
/// at a time, in float32; the new config.json has under "array_dtypes" those of arrays that were
/// something else and are as they were, for the way back: memory for two of them is needed, and for
/// the network before, where values other than a head's are fresh. Throws Error: usage for a
/// configuration that does not fit the arrays, failure for files that are not what they should be.
ImportVMoEResult import_vmoe(const ImportVMoEOptions& options);

nlohmann::ordered_json to_json(const ImportVMoEResult& result);
std::string describe(const ImportVMoEResult& result);

}  // namespace moesaic
