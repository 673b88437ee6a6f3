// SPDX-License-Identifier: Apache-2.0
// How a kind of data is checked, found, opened and verified: one registry entry a format.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "moesaic/base/registry.h"
#include "moesaic/config/choice.h"
#include "moesaic/data/catalog.h"
#include "moesaic/data/dataset.h"

namespace moesaic {

/// A file or folder that has to be in a dataset's folder, beside the files that are described.
struct DatasetPart {
  std::string path;
  bool is_folder = true;
};

/// A format of datasets. A split given to these functions is a stored one, one of splits(); a
/// validation split that a description holds out of the training files is cut off behind open().
struct DatasetFormat {
  Choice settings;               ///< what stands beside "format" in a description, with defaults
  bool images = true;            ///< false: the inputs are no images, and have no mean and std
  bool generated = false;        ///< there are no files: the data are made when they are opened
  bool sorted_by_class = false;  ///< files stand class by class: each class gives to validation

  /// What of a description without base does not fit, "" if nothing is wrong.
  std::function<ConfigProblem(const DatasetSpec& spec)> check;
  /// Opens info.split in `folder` (empty where data are generated). `info` has what the
  /// description tells; the rest is the format's to fill in. Throws Error (failure) for files that
  /// are damaged or at odds with each other.
  std::function<std::shared_ptr<const Dataset>(const DatasetSpec& spec, DatasetInfo info,
                                               const std::filesystem::path& folder)>
      open;

  /// The stored splits; by default train and test.
  std::function<std::vector<std::string>(const DatasetSpec& spec)> splits = [](const DatasetSpec&) {
    return std::vector<std::string>{"train", "test"};
  };
  /// What the format calls a split; by default its name.
  std::function<std::string(const DatasetSpec& spec, const std::string& split)> source =
      [](const DatasetSpec&, const std::string& split) { return split; };
  /// What has to be in the folder for a split, beside spec.files whose role begins with its name.
  std::function<std::vector<DatasetPart>(const DatasetSpec& spec, const std::string& split)> parts =
      [](const DatasetSpec&, const std::string&) { return std::vector<DatasetPart>{}; };
  /// How many classes there are, as far as the description tells; 0: unknown, or none.
  std::function<int64_t(const DatasetSpec& spec)> class_count = [](const DatasetSpec& spec) {
    return static_cast<int64_t>(spec.classes.size());
  };
  /// Completes what is known of a dataset before its files are there: its shape, and classes or
  /// names of targets.
  std::function<void(const DatasetSpec& spec, DatasetInfo& info)> outline = [](const DatasetSpec&,
                                                                               DatasetInfo&) {};

  /// Looks at everything in the folder that belongs to a split; for data without described files.
  std::function<std::vector<FileVerification>(const DatasetSpec& spec, const std::string& split,
                                              const std::filesystem::path& folder)>
      verify = [](const DatasetSpec&, const std::string&, const std::filesystem::path&) {
        return std::vector<FileVerification>{};
      };
  /// What is wrong with a described file whose hash nobody knows, "" if nothing is.
  std::function<std::string(const DatasetSpec& spec, const std::filesystem::path& file,
                            const DatasetFile& description)>
      verify_file = [](const DatasetSpec&, const std::filesystem::path&, const DatasetFile&) {
        return std::string();
      };
};

/// Every format by the name that descriptions give under "format".
Registry<DatasetFormat>& dataset_formats();

/// The format of a description.
const DatasetFormat& format_of(const DatasetSpec& spec);

/// What a description tells of one of its splits.
DatasetInfo described_info(const DatasetSpec& spec, const std::string& split);

}  // namespace moesaic
