// SPDX-License-Identifier: Apache-2.0
// Metadata of exported weights, so that they can be used without this library.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "moesaic/models/model.h"

namespace moesaic {

/// Metadata of the data that a network was trained on.
struct ExportInfo {
  std::string dataset;               ///< Name; "" if unknown.
  std::vector<std::string> classes;  ///< Names of the outputs, in order; may be empty.
  std::vector<double> mean, std;     ///< Per channel, for pixels scaled to [0, 1]; may be empty.
  /// Dtypes of imported arrays that were not float32, by the names of google-research/vmoe.
  std::map<std::string, std::string> array_dtypes;
  bool of_images = true;  ///< False for inputs that are used without preprocessing.
};

/// Returns the metadata of a checkpoint directory: the dtypes of its imported arrays, its class
/// names and the normalisation of its dataset, where the dataset is known.
ExportInfo export_info(const std::filesystem::path& checkpoint);

/// Returns file name -> text: "config.json" with the model's configuration, "labels.json" with the
/// list of class names, "preprocess.json" with the preprocessing of images.
std::map<std::string, std::string> side_files(const Model& model, const ExportInfo& info);

}  // namespace moesaic
