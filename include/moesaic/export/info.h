// SPDX-License-Identifier: Apache-2.0
// What travels with exported weights, so that they can be used without this library.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "moesaic/models/model.h"

namespace moesaic {

/// Facts of the data that a network was trained on.
struct ExportInfo {
  std::string dataset;               ///< "" if unknown
  std::vector<std::string> classes;  ///< names of the outputs, in order; may be empty
  std::vector<double> mean, std;     ///< of the channels, pixels scaled to [0, 1]; may be empty
  /// Of arrays that were imported and were not float32, by the names of google-research/vmoe.
  std::map<std::string, std::string> array_dtypes;
  bool of_images = true;  ///< else inputs are numbers that are taken as they are
};

/// Of a checkpoint: what its arrays were imported from, its class names and its data set's
/// normalisation, where the data set is known.
ExportInfo export_info(const std::filesystem::path& checkpoint);

/// "config.json": the model's configuration; "labels.json": the class names, a list;
/// "preprocess.json": what images become before they are the input. File name -> text.
std::map<std::string, std::string> side_files(const Model& model, const ExportInfo& info);

}  // namespace moesaic
