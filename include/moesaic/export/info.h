// SPDX-License-Identifier: Apache-2.0
// Metadata of exported weights, so that they can be used without this library.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>

#include "moesaic/checkpoint/store.h"

namespace moesaic {

struct ExportInfo {
  InputSpec input;
  std::string loss = {};                   ///< Objective of the last phase; "" if unknown.
  std::optional<int64_t> batch_size = {};  ///< Images a batch in the run's own evaluations.
  /// Dtypes of imported arrays that were not float32, by the names of google-research/vmoe.
  std::map<std::string, std::string> array_dtypes = {};
};

/// Returns the metadata of a checkpoint of `model`; its tensors are not needed.
ExportInfo export_info(const Checkpoint& checkpoint, const Model& model);

/// Returns why an image's result depends on the images before it in a batch, "" where it does not:
/// experts' capacities that images share, or noise that is drawn by an image's place.
std::string batch_dependence(const Model& model);

/// Returns file name -> text: "config.json" with the model's configuration and, under
/// kConstantsKey, its constants(), "labels.json" with the list of class names, "preprocess.json"
/// with document_of() the input, "evaluation.json" with the loss and the batch size by which
/// moesaic evaluates.
std::map<std::string, std::string> side_files(const Model& model, const ExportInfo& info);

}  // namespace moesaic
