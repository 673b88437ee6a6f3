// SPDX-License-Identifier: Apache-2.0
// Folders of images, one for each class: <split>/<class>/<image>.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <set>
#include <system_error>

#include "../image_files.h"
#include "built_in.h"
#include "checks.h"
#include "moesaic/base/error.h"
#include "moesaic/base/log.h"
#include "moesaic/base/nearest.h"
#include "moesaic/base/text.h"
#include "moesaic/data/image_files.h"

namespace fs = std::filesystem;

namespace moesaic {
namespace {

struct ImageFolderSettings {
  int64_t class_count = 0;
  std::map<std::string, std::string> splits;
  std::optional<bool> exif_orientation;
};
template <class Fields>
void describe(Fields& f, ImageFolderSettings& c) {
  f("class_count", c.class_count, "how many classes there have to be; 0: any", at_least(0));
  f("splits", c.splits,
    "folder of each split, by default train and, to test with, val; there is a validation split "
    "where its folder is given");
  f("exif_orientation", c.exif_orientation,
    "turn images as EXIF's orientation says, as viewers do; true unless given, "
    "google-research/vmoe leaves them as stored");
}

const ImageFolderSettings& settings_of(const DatasetSpec& spec) {
  return spec.format.as<ImageFolderSettings>();
}

ConfigProblem check_image_folder(const DatasetSpec& spec) {
  return first_problem(no_files_problem(spec), classes_problem(spec, settings_of(spec).class_count),
                       unknown_split(spec.images, "images"),
                       unknown_split(settings_of(spec).splits, "splits"),
                       channels_problem(spec, spec.mean.size() == 1 ? 1 : 3));
}

std::vector<std::string> splits_image_folder(const DatasetSpec& spec) {
  if (!settings_of(spec).splits.contains("validation")) return {"train", "test"};
  return {"train", "validation", "test"};
}

std::string source_image_folder(const DatasetSpec& spec, const std::string& split) {
  const auto& folders = settings_of(spec).splits;
  if (const auto found = folders.find(split); found != folders.end()) return found->second;
  return split == "train" ? "train" : "val";
}

int64_t class_count_image_folder(const DatasetSpec& spec) {
  return spec.classes.empty() ? settings_of(spec).class_count
                              : static_cast<int64_t>(spec.classes.size());
}

void outline_image_folder(const DatasetSpec& spec, DatasetInfo& info) {
  info.classes_named = !info.classes.empty();
  for (int64_t i = static_cast<int64_t>(info.classes.size()); i < class_count_image_folder(spec);
       ++i) {
    info.classes.push_back(fmt::format("class {}", i));
  }
}

enum class Listed { folders, images };

struct Listing {
  std::vector<std::string> names;   ///< Names, sorted.
  std::vector<std::string> others;  ///< Names of what is left out.
};

/// Lists the entries of `folder` except hidden ones. Links are followed but folders are not
/// entered, so circular links are harmless.
Listing list_folder(const fs::path& folder, Listed what) {
  Listing listing;
  std::error_code error, unknown;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    std::string name = it->path().filename().string();
    if (name.starts_with('.')) continue;
    const bool wanted = what == Listed::folders
                            ? it->is_directory(unknown)
                            : has_image_name(it->path()) && it->is_regular_file(unknown);
    (wanted ? listing.names : listing.others).push_back(std::move(name));
  }
  if (error) fail("{}: cannot be listed: {}", folder.string(), error.message());
  std::sort(listing.names.begin(), listing.names.end());
  return listing;
}

/// Returns the described classes, else the folders of the training images, common to all splits.
std::vector<std::string> classes_in(const DatasetSpec& spec, const fs::path& folder,
                                    const fs::path& part) {
  if (!spec.classes.empty()) return spec.classes;
  const fs::path train = folder / source_image_folder(spec, "train");
  std::error_code error;
  const fs::path& listed = fs::is_directory(train, error) ? train : part;
  std::vector<std::string> classes = list_folder(listed, Listed::folders).names;
  if (classes.empty()) fail("{}: no folder of a class in it", listed.string());
  const int64_t expected = settings_of(spec).class_count;
  if (expected > 0 && static_cast<int64_t>(classes.size()) != expected) {
    fail("dataset '{}': {} has folders of {}, expected {}", spec.name, listed.string(),
         count_text(static_cast<int64_t>(classes.size()), "class"), expected);
  }
  return classes;
}

void check_known(const std::vector<std::string>& found, const std::vector<std::string>& classes,
                 const fs::path& part) {
  const std::set<std::string> known(classes.begin(), classes.end());
  for (const std::string& name : found) {
    if (!known.contains(name)) {
      fail("{}: not a class of this dataset; {}", (part / name).string(),
           did_you_mean(name, classes));
    }
  }
}

/// Returns names in quotes, the first few of many.
std::string quoted_names(std::vector<std::string> names) {
  constexpr size_t kMax = 5;
  std::sort(names.begin(), names.end());
  const bool more = names.size() > kMax;
  if (more) names.resize(kMax);
  return fmt::format("'{}'{}", fmt::join(names, "', '"), more ? ", ..." : "");
}

/// Says which folders of an undescribed dataset are which splits, and which are none.
void report_splits(const DatasetSpec& spec, const fs::path& folder) {
  const auto& splits = settings_of(spec).splits;
  std::vector<std::string> unused;
  for (const char* name : {"val", "validation", "test"}) {
    const bool used = std::any_of(splits.begin(), splits.end(),
                                  [&](const auto& split) { return split.second == name; });
    std::error_code error;
    if (!used && fs::is_directory(folder / name, error)) unused.emplace_back(name);
  }
  const auto validation = splits.find("validation");
  std::error_code error;
  const std::string& test = splits.at("test");
  log_info("dataset '{}': 'train' is to train on, {}, {}{}", spec.name,
           fs::is_directory(folder / test, error)
               ? fmt::format("'{}' to test with", test)
               : "nothing to test with (no test, val or validation)",
           validation == splits.end() ? "none is the validation split"
                                      : fmt::format("'{}' to validate with", validation->second),
           unused.empty() ? "" : "; left out: " + quoted_names(unused));
}

/// What was found in the folders of the classes.
struct Found {
  FileList files;
  std::vector<std::string> others, empty;
};

Found find_files(const std::vector<std::string>& classes, const fs::path& part,
                 const std::vector<std::string>& folders) {
  Found found{FileList(part), {}, {}};
  for (size_t label = 0; label < classes.size(); ++label) {
    const std::string& name = classes[label];
    Listing listing;
    if (std::binary_search(folders.begin(), folders.end(), name)) {
      listing = list_folder(part / name, Listed::images);
    }
    if (listing.names.empty()) found.empty.push_back(name);
    const int32_t number = found.files.add_folder(name);
    for (const std::string& file : listing.names) {
      found.files.add(number, file, static_cast<int32_t>(label));
    }
    for (const std::string& other : listing.others) found.others.push_back(name + "/" + other);
  }
  return found;
}

std::shared_ptr<const Dataset> open_image_folder(const DatasetSpec& spec, DatasetInfo info,
                                                 const fs::path& folder) {
  const fs::path part = folder / source_image_folder(spec, info.split);
  info.classes = classes_in(spec, folder, part);
  info.channels = static_cast<int64_t>(info.mean.size());
  info.channels_open = spec.is_path();
  info.upright = settings_of(spec).exif_orientation;
  const Listing folders = list_folder(part, Listed::folders);
  check_known(folders.names, info.classes, part);
  Found found = find_files(info.classes, part, folders.names);
  if (found.files.size() == 0)
    fail("{}: no JPEG, PNG or WebP images in its folders", part.string());
  const auto warn = [&](const std::vector<std::string>& names, const char* noun, const char* what) {
    if (names.empty()) return;
    log_warning("dataset '{}': {} in {} {}: {}", info.name,
                count_text(static_cast<int64_t>(names.size()), noun), part.string(), what,
                quoted_names(names));
  };
  warn(found.empty, "class", "without images");
  warn(folders.others, "file", "beside the folders of the classes, left out");
  warn(found.others, "file", "neither JPEG, PNG nor WebP by name, left out");
  if (spec.is_path() && info.split == "train") report_splits(spec, folder);
  return std::make_shared<ImageFiles>(std::move(info), std::move(found.files));
}

/// Returns the splits of a folder without a description: the test split is test, else val, else
/// validation; the validation split is validation, else val, where that is not the test split.
std::map<std::string, std::string> habitual_splits(const fs::path& folder) {
  const auto has = [&](const char* name) {
    std::error_code error;
    return fs::is_directory(folder / name, error);
  };
  std::map<std::string, std::string> found = {{"train", "train"}};
  found["test"] = has("test") ? "test" : has("validation") && !has("val") ? "validation" : "val";
  for (const char* name : {"validation", "val"}) {
    if (has(name) && found["test"] != name) {
      found["validation"] = name;
      break;
    }
  }
  return found;
}

}  // namespace

Choice image_folder_settings(const fs::path& folder) {
  return Choice("image_folder", ImageFolderSettings{.splits = habitual_splits(folder)});
}

DatasetFormat image_folder_format() {
  return {.settings = Choice("image_folder", ImageFolderSettings{}),
          .sorted_by_class = true,
          .check = check_image_folder,
          .open = open_image_folder,
          .splits = splits_image_folder,
          .source = source_image_folder,
          .parts =
              [](const DatasetSpec& spec, const std::string& split) {
                return std::vector<DatasetPart>{{source_image_folder(spec, split)}};
              },
          .class_count = class_count_image_folder,
          .outline = outline_image_folder,
          .verify = verify_image_files};
}

}  // namespace moesaic
