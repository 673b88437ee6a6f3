// SPDX-License-Identifier: Apache-2.0
// Formats of datasets: how data is checked, found, opened and verified, one registry entry each;
// and data that are generated when they are opened, by the settings of a description.
#pragma once

#include <utility>

#include "moesaic/base/registry.h"
#include "moesaic/config/named_settings.h"
#include "moesaic/data/dataset.h"
#include "moesaic/data/source.h"

namespace moesaic {

/// A file or folder required in a dataset's folder, in addition to the described files.
struct RequiredPath {
  std::string path;
  bool is_folder = true;
};

/// Verifies a split without described files by opening it: decodes the images of its files, or
/// reads its file of rows; where both splits have one file, it is read for the train split alone.
std::vector<FileVerification> verify_by_opening(const DatasetSpec& spec, const std::string& split,
                                                const fs::path& folder);

/// A format of datasets. Splits passed to these functions are stored ones, of splits(); a
/// validation split that is held out of the training files is separated after open().
struct DatasetFormat {
  NamedSettings settings;           ///< Settings beside "format" in a description, with defaults.
  std::string description;          ///< Description for lists of formats.
  bool has_images = true;           ///< False for inputs that are not images, without mean and std.
  bool has_exif = false;            ///< True for image files, whose EXIF may say how to turn them.
  bool is_generated = false;        ///< True for data generated when opened, without files.
  bool is_sorted_by_class = false;  ///< True for files sorted by class; validation has all classes.

  /// Returns what is wrong with a description without base, "" if nothing is.
  std::function<ConfigProblem(const DatasetSpec& spec)> check;
  /// Adds to a description without base what it leaves to its files, where they are here or, for
  /// lists, on the web; nothing by default.
  std::function<void(DatasetSpec& spec)> complete = [](DatasetSpec&) {};
  /// Opens info.split in `folder` (empty for generated data). `info` has what the description
  /// contains; the format fills in the rest. Throws Error (failure) for files that are damaged or
  /// inconsistent.
  std::function<std::shared_ptr<const Dataset>(const DatasetSpec& spec, DatasetInfo info,
                                               const fs::path& folder)>
      open;

  /// Returns the stored splits; by default train and test.
  std::function<std::vector<std::string>(const DatasetSpec& spec)> splits = [](const DatasetSpec&) {
    return std::vector<std::string>{"train", "test"};
  };
  /// Returns what a split requires in addition to spec.files whose role starts with its name.
  std::function<std::vector<RequiredPath>(const DatasetSpec& spec, const std::string& split)>
      required_paths = [](auto&, auto&) { return std::vector<RequiredPath>{}; };
  /// Fetches all parts from spec.urls; set by formats whose parts are fetched singly, also by
  /// open() where they are needed and not in `folder`.
  std::function<FetchResult(const DatasetSpec& spec, const FetchOptions& options)> fetch = {};
  /// Completes the metadata of a dataset that is not opened, for lists and plans: its shape, and
  /// classes or names of targets.
  std::function<void(const DatasetSpec& spec, DatasetInfo& info)> fill_info = [](auto&, auto&) {};

  /// Verifies all files of a split in the folder; for data without described files.
  std::function<std::vector<FileVerification>(const DatasetSpec& spec, const std::string& split,
                                              const fs::path& folder)>
      verify = verify_by_opening;
  /// Returns what is wrong with a described file without a known hash, "" if nothing is.
  std::function<std::string(const DatasetSpec& spec, const fs::path& file,
                            const DatasetFile& description)>
      verify_file = [](auto&, auto&, auto&) { return std::string(); };
};

/// Returns the registry of formats, by the value of "format" in descriptions.
Registry<DatasetFormat>& dataset_formats();

/// Returns the format of a description.
const DatasetFormat& format_of(const DatasetSpec& spec);

/// Returns the metadata that a description contains of one of its splits.
DatasetInfo info_from_spec(const DatasetSpec& spec, const std::string& split);

/// The settings of generated data in a description: one object, under the key Config::kKey.
template <class Config>
struct GeneratedSettings {
  std::optional<Config> data;
};
template <class Fields, class Config>
void describe(Fields& f, GeneratedSettings<Config>& c) {
  f(Config::kKey, c.data, "settings of the generator, instead of files; null: only with base");
}

/// Checks a description of generated data that has its settings, if `is_given`.
ConfigProblem check_generated(const DatasetSpec& spec, const char* key, bool is_given,
                              bool is_endless);

/// Makes a dataset of `size` generated examples; of an endless one those that count as an epoch.
/// Throws Error (failure) if one that is not endless does not fit into memory.
std::shared_ptr<const Dataset> open_generated(DatasetInfo info, const MakeInputs& make,
                                              int64_t size, bool is_endless);

/// Returns whether the training split has no end: always, unless the settings have an `endless`.
bool is_endless(const auto& config) {
  if constexpr (requires { config.endless; }) return config.endless;
  return true;
}

/// Returns the format of data whose examples of info.split are generated by what `make` returns; it
/// completes in `info` the names of classes, groups or targets, and the directions. Where there is
/// a warn_of(config, info), it is called for data that are opened.
template <class Config>
DatasetFormat generated_format(std::string name, std::string description,
                               MakeInputs (*make)(const Config&, DatasetInfo& info)) {
  using Settings = GeneratedSettings<Config>;
  return {.settings = NamedSettings(std::move(name), Settings{}),
          .description = std::move(description),
          .has_images = false,
          .is_generated = true,
          .check =
              [](const DatasetSpec& spec) {
                const auto& data = spec.format.as<Settings>().data;
                return check_generated(spec, Config::kKey, data.has_value(),
                                       data && is_endless(*data));
              },
          .open =
              [make](const DatasetSpec& spec, DatasetInfo info, const fs::path&) {
                const Config& config = *spec.format.as<Settings>().data;
                if constexpr (requires { warn_of(config, info); }) warn_of(config, info);
                const MakeInputs examples = make(config, info);
                const bool train = info.split == "train";
                return open_generated(std::move(info), examples,
                                      train ? config.num_train : config.num_test,
                                      train && is_endless(config));
              },
          .fill_info = [make](const DatasetSpec& spec,
                              DatasetInfo& info) { make(*spec.format.as<Settings>().data, info); }};
}

}  // namespace moesaic
